"""How long what an agent has started may run within one step of an environment.

A step that exceeds its limit (`env.step_timeout_s`) is an infrastructure failure: the episode is played again and never
trained. A policy could so void an episode that it is losing, by a program that sleeps. What an agent starts must
therefore end within a share of the step, and that it did not is an outcome of the agent's like any other.

    step's limit
    |-- SHARE: what the agent has started: programs, queries, clicks; granted piece by piece
    |-- the rest: starting sandboxes, files, and what the environment does itself

Sandboxes ask for what they are to run by themselves. An environment that does something else on the agent's behalf asks
here, and divides its step with `part` where it both runs the agent's programs and judges them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

SHARE = 0.65
"""The share of a step's limit, for all that the agent has started."""
STEP_TIMEOUT_S = 30.0
"""The limit of a step where nothing says otherwise, and the environment needs no more."""
LEAST_S = 0.05
"""With less nothing is started."""


class AgentTime:
    """What is left of the time of one step, or of a part of it. Seconds."""

    def __init__(self, total_s: float) -> None:
        self.total_s = self.left_s = total_s
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, wanted_s: float) -> float:
        """Return how long something may run: as long as is wanted, or else all that is left when nothing else runs."""
        while self.left_s < wanted_s and self._running:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        granted_s = min(wanted_s, self.left_s)
        self.left_s -= granted_s
        self._running += 1
        return granted_s

    def give_back(self, unused_s: float) -> None:
        """Something has ended that was granted so much more."""
        self.left_s += max(0.0, unused_s)
        self._running -= 1
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


_current: ContextVar[AgentTime | None] = ContextVar("agent_time", default=None)


@dataclass(slots=True)
class Grant:
    """The right to run for `limit_s` seconds."""

    limit_s: float
    cut: bool
    """Whether that is less than was asked for: running out of it is the agent's doing."""
    used_s: float | None = None
    """How long it ran, where that is known better than by the clock."""

    @property
    def enough(self) -> bool:
        """False where there is no time left to start anything."""
        return self.limit_s >= LEAST_S or not self.cut


@contextmanager
def of_step(limit_s: float) -> Iterator[None]:
    """Divide a step of this limit: what runs inside gets its share of it."""
    with _within(AgentTime(SHARE * limit_s)):
        yield


@contextmanager
def part(share: float) -> Iterator[None]:
    """Give what runs inside this share of the time, and no more; nothing outside of a step."""
    whole = _current.get()
    with _within(None if whole is None else AgentTime(share * whole.total_s)):
        yield


@contextmanager
def own() -> Iterator[None]:
    """What runs inside is the environment's own: no time of the agent's."""
    with _within(None):
        yield


@contextmanager
def _within(found: AgentTime | None) -> Iterator[None]:
    token = _current.set(found)
    try:
        yield
    finally:
        _current.reset(token)


@asynccontextmanager
async def granted(wanted_s: float) -> AsyncIterator[Grant]:
    """Ask for time to run something that the agent has started; all that is wanted outside of a step.

    It may wait for what runs beside it, whose time is then this one's.
    """
    found = _current.get()
    if found is None:
        yield Grant(wanted_s, cut=False)
        return
    limit_s = await found.take(wanted_s)
    grant, start = Grant(limit_s, cut=limit_s < wanted_s), time.monotonic()
    try:
        yield grant
    finally:
        used_s = time.monotonic() - start if grant.used_s is None else grant.used_s
        found.give_back(limit_s - used_s)


def step_limit_s(given_s: float | None, least_s: float) -> float:
    """Return the limit of a session's steps. given_s: `env.step_timeout_s`; None where it follows from the environment,
    which needs `least_s` (`Env.least_step_s`)."""
    return max(STEP_TIMEOUT_S, least_s) if given_s is None else given_s


def needed_s(limit_s: float, share: float = 1.0) -> float:
    """Return the least limit of a step in which something may take `limit_s` in a part of this share."""
    return limit_s / (SHARE * share)
