"""Places for sessions: how many exist, in total and by environment, and who gets the next one."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import UnavailableError

RETRY_AFTER_S = 1.0
FORGET_S = 60.0
"""How long a caller that got no place keeps its position in the queue."""
ALL = ""
"""Stands for all environments together."""


class NoPlace(UnavailableError):
    """Every place is taken. `stuck_s`: seconds since a place was last freed."""

    def __init__(self, message: str, stuck_s: float) -> None:
        super().__init__(message, RETRY_AFTER_S)
        self.stuck_s = stuck_s


@dataclass(eq=False, slots=True)
class _Waiter:
    number: int
    """Position in the queue: that of its first call."""
    names: tuple[str, ...]
    granted: asyncio.Future[None]


class Places:
    """Assigns places, first come first served among those whose limits leave room.

    most: sessions at once. limits: the same per environment, by name.
    """

    def __init__(
        self, most: int, limits: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self.limits = dict(limits)
        self.total = 0
        """Sessions that hold a place."""
        self.held: Counter[str] = Counter()
        """The same by environment; one that plays inside another counts under both names."""
        self.stopping = asyncio.Event()
        """Set when nobody should wait anymore."""
        self._clock = clock
        self._freed = dict.fromkeys((ALL, *self.limits), clock())
        self._waiting: list[_Waiter] = []
        self._numbers = itertools.count()
        self._asked: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Position and time of the last call of callers that may come back, by ticket; latest last."""

    @property
    def queued(self) -> int:
        """Callers that wait for a place now."""
        return len(self._waiting)

    async def take(self, names: Sequence[str], ticket: str = "", wait_s: float = 0.0) -> None:
        """Take a place for a session that counts under `names`; wait for it up to `wait_s`.

        ticket: lets a caller that comes back soon keep its position in the queue. Raises `NoPlace`.
        """
        number = self._number(ticket)
        if self._full(names) is None:
            self._take(names)
        elif wait_s > 0 and not self.stopping.is_set():
            await self._wait(
                _Waiter(number, tuple(names), asyncio.get_running_loop().create_future()), wait_s
            )
        else:
            raise self._refusal(names)
        self._asked.pop(ticket, None)

    def give_back(self, names: Sequence[str]) -> None:
        """Free a place for the longest waiter whose limits allow it."""
        self.total -= 1
        for name in set(names):
            self.held[name] -= 1
            if not self.held[name]:
                del self.held[name]
        now = self._clock()
        self._freed.update((name, now) for name in (ALL, *names) if name in self._freed)
        for waiter in list(self._waiting):
            if self._full(waiter.names) is None:
                self._waiting.remove(waiter)
                self._take(waiter.names)
                waiter.granted.set_result(None)

    async def _wait(self, waiter: _Waiter, wait_s: float) -> None:
        bisect.insort(self._waiting, waiter, key=lambda one: one.number)
        stop = asyncio.ensure_future(self.stopping.wait())
        either: set[asyncio.Future[Any]] = {waiter.granted, stop}
        try:
            await asyncio.wait(either, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if waiter.granted.done():
                self.give_back(waiter.names)
            raise
        finally:
            stop.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if not waiter.granted.done():
            raise self._refusal(waiter.names)

    def _take(self, names: Sequence[str]) -> None:
        self.total += 1
        self.held.update(set(names))

    def _full(self, names: Sequence[str]) -> str | None:
        """Return the limit that leaves no room: an environment's name, `ALL`, or None."""
        if self.total >= self.most:
            return ALL
        return next((name for name in names if self.held[name] >= self.limits.get(name, self.most)), None)

    def _refusal(self, names: Sequence[str]) -> NoPlace:
        limit = self._full(names)
        if limit is None:
            # Only when the service stops while a place comes free.
            return NoPlace("the environment service stops", 0.0)
        message = f"all {self.most} environment sessions are in use"
        if limit != ALL:
            message = f"all {self.limits[limit]} sessions of environment {limit!r} are in use"
        return NoPlace(message, self._clock() - self._freed[limit])

    def _number(self, ticket: str) -> int:
        now = self._clock()
        while self._asked and now - next(iter(self._asked.values()))[1] > FORGET_S:
            self._asked.popitem(last=False)
        number = self._asked[ticket][0] if ticket in self._asked else next(self._numbers)
        if ticket:
            self._asked[ticket] = number, now
            self._asked.move_to_end(ticket)
        return number
