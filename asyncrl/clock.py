"""The clocks of this process: one to wait by, one for records. Neither jumps when somebody sets the system's clock.

`time.time()` and `datetime.now()` jump with it, and are read nowhere else but where `tests/test_clock.py` says why.
"""

from __future__ import annotations

import asyncio
import time


def now_s() -> float:
    """Return monotonic seconds by the running event loop's clock, or by the system's where no loop runs.

    The two are the same clock unless the loop has one of its own, as a simulation has.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def stamp_s() -> float:
    """Return seconds since 1970 for a record, by the system's clock as it was when this process began.

    Two stamps of one process are as far apart as they were in truth, a suspended machine's time included.
    """
    return _BEGAN_S + _since_boot_s()


def age_s(changed_s: float) -> float:
    """Return how long ago a file was changed. Below 0 where the clock was set back since, or files have another's."""
    return time.time() - changed_s


def _since_boot_s() -> float:
    # Linux counts the time in which a machine was suspended on this clock only.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


_BEGAN_S = time.time() - _since_boot_s()
