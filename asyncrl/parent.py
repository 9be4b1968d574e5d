"""What a child process takes from the one that starts it: its end, and its turn on the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
AUTOGROUP = "/proc/self/autogroup"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def step_back(nice: int) -> None:
    """Let processes that are `nice` steps less nice have the CPU before this one and what it starts."""
    os.nice(nice)
    # Where Linux groups processes by session it weighs the groups instead.
    with contextlib.suppress(OSError), open(AUTOGROUP, "w") as group:
        group.write(str(nice))
