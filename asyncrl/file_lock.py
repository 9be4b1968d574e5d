"""A folder or file that one process has for itself."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from asyncrl.errors import ConfigError


def own(path: Path, otherwise: str, flags: int = 0, mode: int = 0o600) -> int:
    """Return a descriptor that holds a file's lock until it is closed or this process ends, however that is.

    flags: of `os.open`, beside those that make the file if need be. mode: of one that is made. Raises `ConfigError`
    saying `otherwise` where another process has it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | flags, mode)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(otherwise) from None
    return lock
