"""The clock by which processes wait: the event loop's, which a simulation sets (`asyncrl.simulation`)."""

from __future__ import annotations

import asyncio
import time


def now_s() -> float:
    """Return monotonic seconds by the running event loop's clock, or by the system's where no loop runs.

    The two are the same clock unless the loop has one of its own.
    """
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
