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


def wait_until(
    condition: Callable[[], T], alive: Callable[[], bool] = lambda: True, limit_s: float = START_S
) -> T:
    """Return the first true answer of `condition`; fail once what would make it true is not alive."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert alive(), "what the test waits for has ended"
        assert time.monotonic() < deadline, "what the test waits for does not happen"
        time.sleep(0.02)
    return found


def running(process: subprocess.Popen[Any]) -> Callable[[], bool]:
    """Return a function that says whether a process still runs."""
    return lambda: process.poll() is None


def wait_for_url(ready: Path, alive: Callable[[], bool]) -> str:
    """Return the address that a service writes to `ready`."""
    wait_until(ready.exists, alive)
    return json.loads(ready.read_text())["url"]
