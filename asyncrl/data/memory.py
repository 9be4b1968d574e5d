"""Keeps freed memory in the process, so that large messages do not fault every page in again."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
LARGEST_KEPT_BYTES = 32 * 2**20
"""glibc accepts no higher threshold for one block."""
KEPT_BYTES = 256 * 2**20
GROWTH_BYTES = 64 * 2**20


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep up to `KEPT_BYTES` of freed memory; True when it did.

    By default blocks above 128 KiB go back to the kernel when freed, and touching the next ones costs a page fault
    every 4 KiB: two thirds of the time it takes to pack a message of 1 MB. All threads use one arena: of several, each
    would keep the most that its threads ever held. Does nothing under another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = {
        M_MMAP_THRESHOLD: LARGEST_KEPT_BYTES,
        M_TRIM_THRESHOLD: KEPT_BYTES,
        M_TOP_PAD: GROWTH_BYTES,
        M_ARENA_MAX: 1,
    }
    accepted = [mallopt(option, size) for option, size in wanted.items()]
    return all(accepted)
