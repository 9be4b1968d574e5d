"""How long agents take between an answer and their next call: the time a cached context should survive."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

FIRST_GUESS_S = 5.0
MARGIN = 4.0
"""A tool call this many times longer than the average still finds its cache."""
LONGEST_S = 600.0
SMOOTHING = 0.05
MAX_OPEN = 65_536


class Pauses:
    """A running average of pauses, and the time to live that follows from it. Times in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.mean_s = FIRST_GUESS_S
        self._since: OrderedDict[str, float] = OrderedDict()

    @property
    def ttl_s(self) -> float:
        """Time within which an answered conversation is expected to continue."""
        return min(LONGEST_S, MARGIN * self.mean_s)

    def began(self, call_id: str) -> None:
        """A call was answered."""
        self._since[call_id] = self.clock()
        if len(self._since) > MAX_OPEN:
            self._since.popitem(last=False)

    def ended(self, call_id: str) -> None:
        """A call was continued; only its first continuation counts."""
        since = self._since.pop(call_id, None)
        if since is not None:
            self.mean_s += SMOOTHING * (self.clock() - since - self.mean_s)
