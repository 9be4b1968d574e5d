"""Room for what requests hold in memory while they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """Lets requests in, in the order in which they came. Not for several threads.

    most: how many at once. total_bytes: what they may hold together; one that holds more is let in alone.
    """

    def __init__(self, most: int, total_bytes: int) -> None:
        self._places, self._bytes = most, total_bytes
        self._total_bytes = total_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def of(self, num_bytes: int) -> AsyncIterator[None]:
        """Wait for room for a request that holds `num_bytes`; it has it inside the context."""
        needed = min(num_bytes, self._total_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((needed, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                # It may have been at the head and kept those behind it out.
                self._let_in()
            else:
                self._leave(needed)
            raise
        try:
            yield
        finally:
            self._leave(needed)

    def _leave(self, num_bytes: int) -> None:
        self._places += 1
        self._bytes += num_bytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            num_bytes, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._places or num_bytes > self._bytes:
                    return
                self._places -= 1
                self._bytes -= num_bytes
                turn.set_result(None)
            self._waiting.popleft()
