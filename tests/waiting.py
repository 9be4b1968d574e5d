"""Waiting for what other processes and threads do, on a machine that may be busy."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
START_S = 500.0
"""How long a process may take to start. One that has ended is noticed at once, so this is only for one that hangs."""
MIN_PAUSE_S = 0.02
MAX_PAUSE_S = 0.25
PAUSE_PER_LOOK = 20
"""Pause between two looks, in CPU times of a look."""


def wait_until(
    condition: Callable[[], T], alive: Callable[[], bool] = lambda: True, limit_s: float = START_S
) -> T:
    """Return the first true answer of `condition`; fail once what would make it true is not alive.

    One that takes long to answer, such as a look at all processes, is asked less often: it would take the CPU from what
    it waits for.
    """
    deadline = time.monotonic() + limit_s
    while True:
        began = time.thread_time()
        if found := condition():
            return found
        assert alive(), "what the test waits for has ended"
        assert time.monotonic() < deadline, "what the test waits for does not happen"
        time.sleep(min(MAX_PAUSE_S, max(MIN_PAUSE_S, PAUSE_PER_LOOK * (time.thread_time() - began))))


def running(process: subprocess.Popen[Any]) -> Callable[[], bool]:
    """Return a function that says whether a process still runs."""
    return lambda: process.poll() is None


def wait_for_url(ready: Path, alive: Callable[[], bool]) -> str:
    """Return the address that a service writes to `ready`."""
    wait_until(ready.exists, alive)
    return json.loads(ready.read_text())["url"]
