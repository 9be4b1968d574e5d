"""The right to use a machine's GPUs, for the trainers of several policies that take turns on them. Loads no torch."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

POLL_S = 0.01


class TrainerLock:
    """One rank's right to its GPU, which the ranks of that number of all trainers in `folder` want.

    A process that ends, however it does, gives it back. Trainers get it in the order in which they asked, if no more
    than two ask; of several that wait, the next is any.
    name: of the policy, for others to read.
    """

    def __init__(self, folder: Path, rank: int, name: str) -> None:
        self.name = name
        # Locks of the process rather than of the open file: children that it forks do not hold them.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._right = os.open(folder / f"training-{rank}.lock", flags, 0o600)
        self._next = os.open(folder / f"training-{rank}.next", flags, 0o600)
        """Held by the trainer that is next, so that the one that has just given up its right does not come first."""
        self._is_next = False

    def acquire(self, wait_s: float) -> bool:
        """Wait so long for the right; False if another trainer has it still. Call again to wait on."""
        deadline = time.monotonic() + wait_s
        while True:
            self._is_next = self._is_next or _lock(self._next)
            if self._is_next and _lock(self._right):
                self._is_next = False
                fcntl.lockf(self._next, fcntl.LOCK_UN)
                os.ftruncate(self._right, 0)
                os.pwrite(self._right, self.name.encode(), 0)
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)

    def release(self) -> None:
        """Give the right back."""
        fcntl.lockf(self._right, fcntl.LOCK_UN)

    def holder(self) -> str:
        """Return whose trainer had the right last."""
        return os.pread(self._right, 256, 0).decode()


def _lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
