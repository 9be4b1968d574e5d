"""A persistent program whose input and output travel over something else than pipes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from asyncrl.errors import ConflictError, DeadlineError
from asyncrl.sandbox.protocol import ReadEnd, ReadResult, SandboxProcess


class StreamProcess(SandboxProcess):
    """Built from three coroutines: `write` input, `pump` output into `feed` until the end, `end` it."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        pump: Callable[[Callable[[bytes], None]], Awaitable[int]],
        end: Callable[[], Awaitable[None]],
        buffer_bytes: int,
    ) -> None:
        self._write, self._end, self._limit = write, end, buffer_bytes
        self._buffer = bytearray()
        self._changed = asyncio.Event()
        self._lost = False
        self._task = asyncio.create_task(self._run(pump))

    async def _run(self, pump: Callable[[Callable[[bytes], None]], Awaitable[int]]) -> int:
        try:
            return await pump(self._feed)
        finally:
            self._changed.set()

    def _feed(self, data: bytes) -> None:
        # The sender cannot be made to wait: output that nobody takes is dropped beyond a generous limit.
        room = self._limit * 4 - len(self._buffer)
        self._lost |= len(data) > room
        self._buffer += data[: max(0, room)]
        self._changed.set()

    async def send(self, data: bytes, timeout_s: float = 10.0) -> None:
        if self._task.done():
            raise ConflictError("the sandboxed program has ended")
        try:
            await asyncio.wait_for(self._write(data), timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"the sandboxed program did not read its input within {timeout_s:g} s"
            ) from error

    async def read_until(self, marker: bytes, timeout_s: float, max_bytes: int | None = None) -> ReadResult:
        if not marker:
            raise ValueError("read_until needs a non-empty marker")
        bound = min(max_bytes or self._limit, self._limit)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            found = self._buffer.find(marker)
            if found >= 0 and found + len(marker) <= bound:
                return self._take(found + len(marker), ReadEnd.MARKER)
            if len(self._buffer) >= bound:
                return self._take(bound, ReadEnd.LIMIT)
            if self._task.done():
                return self._take(len(self._buffer), ReadEnd.CLOSED)
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return self._take(len(self._buffer), ReadEnd.TIMEOUT)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _take(self, count: int, end: ReadEnd) -> ReadResult:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return ReadResult(data, end)

    async def wait(self, timeout_s: float) -> int:
        try:
            return await asyncio.wait_for(asyncio.shield(self._task), timeout_s)
        except TimeoutError as error:
            raise DeadlineError(f"the sandboxed program still runs after {timeout_s:g} s") from error

    async def kill(self) -> None:
        if not self._task.done():
            await self._end()
            with contextlib.suppress(TimeoutError, Exception):
                await asyncio.wait_for(self._task, 10)
