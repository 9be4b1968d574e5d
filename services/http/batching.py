"""Request batching: items that become ready together are sent in one call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RequestBatcher(Generic[T]):
    """Collects items and passes them to `send` in batches of at most `max_batch`.

    delay_s: least seconds between two flushes. Even 0 waits for the end of this pass of the event loop, in which more
    items may become ready.
    """

    def __init__(
        self, send: Callable[[list[T]], Coroutine[Any, Any, None]], max_batch: int, delay_s: float = 0.0
    ) -> None:
        self.send = send
        self.max_batch = max_batch
        self.delay_s = delay_s
        self._waiting: list[T] = []
        self._timer: asyncio.TimerHandle | None = None
        self._flushed_at = -math.inf
        self._calls: set[asyncio.Task[None]] = set()

    def add(self, item: T) -> None:
        self._waiting.append(item)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._flushed_at + self.delay_s), self._flush)

    async def close(self) -> list[T]:
        """Cancel the running calls; return the items that were not sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unsent, self._waiting = self._waiting, []
        for call in list(self._calls):
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        return unsent

    def _flush(self) -> None:
        self._timer, self._flushed_at = None, asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), self.max_batch):
            call = asyncio.ensure_future(self.send(waiting[start : start + self.max_batch]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
