"""How long what is running now may still take, for work that divides it: the programs of one step of an environment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

MARGIN = 0.1
"""Share of the budget that is left for what comes after the work."""

_ends: ContextVar[float | None] = ContextVar("asyncrl_time_budget", default=None)


@contextlib.contextmanager
def limited_to(seconds: float) -> Iterator[None]:
    """Give what runs inside, and the tasks and threads it starts by asyncio, this long."""
    token = _ends.set(time.monotonic() + seconds * (1 - MARGIN))
    try:
        yield
    finally:
        _ends.reset(token)


def remaining_s(most: float) -> float:
    """Return how long there is left, at most `most`; `most` where nothing is limited."""
    ends = _ends.get()
    return most if ends is None else min(most, max(0.0, ends - time.monotonic()))
