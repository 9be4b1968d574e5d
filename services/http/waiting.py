"""Requests that wait on the server until they can be answered, their time is up, or the client disconnects."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Waiter(Generic[T]):
    attempt: Callable[[], T | None]
    answer: asyncio.Future[T | None]
    gone: asyncio.Future[Any]


class Waiters(Generic[T]):
    """A queue of waiting requests, first come, first served.

    `attempt` returns the answer, or None while there is none. Whoever changes the state that attempts read calls
    `pump`.
    """

    def __init__(self, stopping: asyncio.Event) -> None:
        self._queue: OrderedDict[_Waiter[T], None] = OrderedDict()
        self._stopping = stopping

    def __len__(self) -> int:
        return len(self._queue)

    async def get(self, attempt: Callable[[], T | None], wait_s: float, request: Request) -> T | None:
        """Return the result of `attempt` within `wait_s`, else None; also None when the client disconnects or
        shutdown begins.

        `request` must have been read to its end.
        """
        if not self._queue and (found := attempt()) is not None:
            return found
        if wait_s <= 0 or self._stopping.is_set():
            return None
        # Of a request that has been read, only the client's disconnection is left to receive.
        gone = asyncio.ensure_future(request.receive())
        stop = asyncio.ensure_future(self._stopping.wait())
        waiter = _Waiter(attempt, asyncio.get_running_loop().create_future(), gone)
        self._queue[waiter] = None
        events: set[asyncio.Future[Any]] = {waiter.answer, gone, stop}
        try:
            await asyncio.wait(events, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            return waiter.answer.result() if waiter.answer.done() else None
        finally:
            gone.cancel()
            stop.cancel()
            self._queue.pop(waiter, None)

    def pump(self, together: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Answer waiting requests in order, up to the first that must keep waiting.

        together: what the attempts are made in, such as one transaction. They are answered when it has ended, all with
        its error if it ends with one.
        """
        if not self._queue:
            return
        tried: list[tuple[_Waiter[T], T | Exception]] = []
        try:
            with together():
                while self._queue:
                    waiter = next(iter(self._queue))
                    if not waiter.gone.done():
                        found = _tried(waiter.attempt)
                        if found is None:
                            break
                        tried.append((waiter, found))
                    del self._queue[waiter]
        except Exception as error:
            tried = [(waiter, error) for waiter, _ in tried]
        for waiter, found in tried:
            if isinstance(found, Exception):
                waiter.answer.set_exception(found)
            else:
                waiter.answer.set_result(found)


def _tried(attempt: Callable[[], T | None]) -> T | Exception | None:
    try:
        return attempt()
    except Exception as error:
        return error
