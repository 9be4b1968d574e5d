"""Waiting for work that others share: what is slow because many wait for it is no outage."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """Waits for pieces of work that one process does, and gives one up once it has ended none for `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._ended_at = -math.inf

    async def wait(self, work: Awaitable[T]) -> T:
        """Return what `work` returns; raises what it raises.

        Raises `TimeoutError` when neither it nor any other piece has ended well for `limit_s` since it began. It is
        cancelled then, as when the caller is.
        """
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        begun = loop.time()
        try:
            while not task.done():
                left = max(begun, self._ended_at) + self.limit_s - loop.time()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([task], timeout=left)
            result = task.result()
            self._ended_at = loop.time()
            return result
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
