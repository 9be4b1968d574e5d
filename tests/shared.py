"""What the processes of one test session make once for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

SHARED = "ASYNCRL_TESTS_SHARED"
"""Environment variable that names the session's folder."""


def shared_folder() -> Path:
    return Path(os.environ[SHARED])


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the session, which the process that needs it first fills by `make`; the others wait."""
    folder = shared_folder() / name
    done = folder / ".made"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder
