"""How many groups a worker runs at once: fewer while the engines' caches have no room for their contexts.

An engine whose KV cache is full preempts running requests and computes them again later, so that more concurrency
yields fewer tokens. The limit falls by a quarter while every engine that serves is full, and rises by one while all
have room again (additive increase, multiplicative decrease).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrl.clock import now_s
from asyncrl.services.engine.placement import ROOMY_KV, EngineLoad, Health

ADJUST_EVERY_S = 2.0
"""Twice the probes' interval, so that the effect of a change is seen before the next one."""
FALL = 0.75


def next_limit(limit: int, most: int, loads: Sequence[EngineLoad]) -> int:
    """Return the limit that follows `limit`, from 1 to `most`. Engines that are dead or suspect do not count."""
    serving = [load for load in loads if load.health in (Health.HEALTHY, Health.CATCHING_UP)]
    if not serving:
        return limit
    if all(load.full for load in serving):
        return max(1, int(limit * FALL))
    if all(load.kv_usage < ROOMY_KV for load in serving):
        return min(most, limit + 1)
    return limit


class Concurrency:
    """Follows the engines. `most` is the recipe's number of groups."""

    def __init__(
        self,
        loads: Callable[[], Sequence[EngineLoad]],
        most: int,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self.most = most
        self._loads = loads
        self._clock = clock
        self._limit = most
        self._since = clock()

    def limit(self) -> int:
        """Return how many groups may run now."""
        now = self._clock()
        if now - self._since >= ADJUST_EVERY_S:
            self._since = now
            self._limit = next_limit(self._limit, self.most, self._loads())
        return self._limit
