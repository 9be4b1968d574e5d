"""User ids for sandboxes, shared by every process on the machine.

A fresh real uid makes RLIMIT_NPROC effective, keeps files of others unreadable and makes leftovers findable.
One byte of a lock file stands for one uid; the kernel frees the byte when its holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

FIRST_UID = 1_900_000_000
"""Above everything that distributions, subordinate-id tools and systemd assign."""
SMALL_FIRST_UID = 40_000
COUNT = 4096


class UidsExhausted(Exception):
    """Every uid of the pool is in use."""


def usable_range() -> tuple[int, int] | None:
    """Return the first uid and the number of uids this process may switch to; None if it may not switch at all."""
    if os.geteuid() != 0:
        return None
    best: tuple[int, int] | None = None
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= FIRST_UID and inside + count >= FIRST_UID + COUNT:
            return FIRST_UID, COUNT
        # A container with a small map: above the people, below systemd's own from 60,000 on.
        if best is None and inside <= SMALL_FIRST_UID and inside + count >= SMALL_FIRST_UID + COUNT:
            best = (SMALL_FIRST_UID, COUNT)
    return best


class UidPool:
    """Assigns uids that nobody else holds. Not thread-safe."""

    def __init__(self, first: int, count: int, folder: str | None = None) -> None:
        self._first, self._count = first, count
        where = folder or ("/run/lock" if os.access("/run/lock", os.W_OK) else tempfile.gettempdir())
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(os.path.join(where, "asyncrl-sandbox-uids"), flags, 0o600)
        self._held: set[int] = set()
        # Processes start at different offsets, so that they rarely try each other's bytes.
        self._next = (os.getpid() * 61) % count

    def take(self) -> int:
        """Raises `UidsExhausted`."""
        for offset in range(self._count):
            index = (self._next + offset) % self._count
            if index in self._held:
                continue
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except OSError:
                continue
            self._held.add(index)
            # Going round instead of reusing uids at once gives the kernel time to reap what the last holder left.
            self._next = index + 1
            return self._first + index
        raise UidsExhausted(f"all {self._count} sandbox user ids are in use")

    def release(self, uid: int) -> None:
        index = uid - self._first
        self._held.discard(index)
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, index)

    def close(self) -> None:
        os.close(self._fd)
