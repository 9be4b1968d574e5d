"""A folder that one process has for itself."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from asyncrl.errors import ConfigError


def own(path: Path, otherwise: str) -> int:
    """Return a descriptor that holds a file's lock until it is closed or this process ends, however that is.

    Raises `ConfigError` saying `otherwise` where another process has it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(otherwise) from None
    return lock
