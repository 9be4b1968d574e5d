"""How a process begins: ended with its parent, in its turn on the CPU, without secrets, its imports undisturbed."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import re
import signal
import sys
from collections.abc import Collection, Iterator
from typing import Any

PR_SET_PDEATHSIG = 1
_SECRET = re.compile(
    r"(?:^|_)(?:\w*TOKEN|\w*KEY|\w*SECRETS?|PASS(?:WORD|WD|PHRASE)|CREDENTIALS?)(?:$|_)", re.IGNORECASE
)
"""Names of environment variables that hold keys, tokens or passwords."""
AUTOGROUP = "/proc/self/autogroup"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def lower_priority(nice: int) -> None:
    """Lower the CPU priority of this process and its children by `nice` steps."""
    os.nice(nice)
    # Where Linux schedules by session (autogroup), it weighs sessions instead.
    with contextlib.suppress(OSError), open(AUTOGROUP, "w") as group:
        group.write(str(nice))


def set_threads(threads: int) -> None:
    """Bound the CPU threads of torch in this process; 0 leaves torch's choice."""
    if threads:
        import torch

        torch.set_num_threads(threads)


@contextlib.contextmanager
def collecting_no_garbage() -> Iterator[None]:
    """Keep the garbage collector away from large imports: what they make stays, and looking through it again and again
    is a quarter of the time that torch, transformers and DeepSpeed take to import."""
    gc.disable()
    try:
        yield
    finally:
        collect_only_new_objects()
        gc.enable()


def collect_only_new_objects() -> None:
    """Keep the garbage collector away from what exists now, which stays: modules, settings, a tokenizer."""
    gc.freeze()
    # What is frozen would not be taken apart at the end, and libraries would call it leaked.
    atexit.register(gc.unfreeze)


def withhold_secrets(named: Collection[str]) -> None:
    """Remove keys, tokens and passwords from this process's environment, and so from its children's, except those
    named."""
    for name in list(os.environ):
        if _SECRET.search(name) and name not in named:
            del os.environ[name]


def texts(value: Any) -> Iterator[str]:
    """Yield every string inside maps and lists; it may name a variable."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)
