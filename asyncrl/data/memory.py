"""Keeps freed memory in the process, so that large messages do not fault every page in again, until it is returned."""

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


def return_freed_memory() -> bool:
    """Give the kernel the pages that glibc's malloc keeps and nobody uses; True when there were any.

    A service that calls this now and then has the memory of what it did since, not of the most that it ever did at
    once. It takes some milliseconds, during which other threads wait with their allocations. Does nothing under another
    C library.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    trim.argtypes = [ctypes.c_size_t]
    return bool(trim(0))
