"""A program that keeps running, behind a pair of pipes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from asyncrl.errors import ConflictError, DeadlineError
from asyncrl.sandbox.jail.streams import CHUNK_BYTES, write_all
from asyncrl.sandbox.protocol import ReadEnd, ReadResult, SandboxProcess


class LocalProcess(SandboxProcess):
    """Reads ahead up to a limit; beyond it the program blocks in its write until something is taken."""

    def __init__(
        self,
        stdin: int,
        stdout: int,
        buffer_bytes: int,
        ended: asyncio.Future[tuple[dict[str, Any], list[int]]],
        kill: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stdin, self._stdout = stdin, stdout
        self._limit = buffer_bytes
        self._ended, self._kill = ended, kill
        self._buffer = bytearray()
        self._changed = asyncio.Event()
        self._closed = False
        self._reading = False
        os.set_blocking(stdout, False)
        self._resume()
        ended.add_done_callback(lambda _: self._close_stdin())

    def _resume(self) -> None:
        if not self._reading and not self._closed and len(self._buffer) < self._limit:
            self._reading = True
            self._loop.add_reader(self._stdout, self._on_readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stdout)

    def _on_readable(self) -> None:
        try:
            chunk = os.read(self._stdout, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._buffer += chunk
        if not chunk:
            self._close_stdout()
        elif len(self._buffer) >= self._limit:
            self._pause()
        self._changed.set()

    def _close_stdout(self) -> None:
        self._pause()
        if not self._closed:
            self._closed = True
            os.close(self._stdout)
            self._changed.set()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    async def send(self, data: bytes, timeout_s: float = 10.0) -> None:
        if self._stdin < 0:
            raise ConflictError("the sandboxed program has ended")
        # On a copy, since the program's end closes the original meanwhile.
        fd = os.dup(self._stdin)
        try:
            await asyncio.wait_for(write_all(fd, data), timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"the sandboxed program did not read its input within {timeout_s:g} s"
            ) from error
        finally:
            os.close(fd)

    async def read_until(self, marker: bytes, timeout_s: float, max_bytes: int | None = None) -> ReadResult:
        if not marker:
            raise ValueError("read_until needs a non-empty marker")
        bound = min(max_bytes or self._limit, self._limit)
        deadline = self._loop.time() + timeout_s
        searched = 0
        while True:
            found = self._buffer.find(marker, max(0, searched - len(marker) + 1))
            if found >= 0 and found + len(marker) <= bound:
                return self._take(found + len(marker), ReadEnd.MARKER)
            searched = len(self._buffer)
            if searched >= bound:
                return self._take(bound, ReadEnd.LIMIT)
            if self._closed:
                return self._take(searched, ReadEnd.CLOSED)
            left = deadline - self._loop.time()
            if left <= 0:
                return self._take(searched, ReadEnd.TIMEOUT)
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    def _take(self, count: int, end: ReadEnd) -> ReadResult:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._resume()
        return ReadResult(data, end)

    async def wait(self, timeout_s: float) -> int:
        try:
            body, _ = await asyncio.wait_for(asyncio.shield(self._ended), timeout_s)
        except TimeoutError as error:
            raise DeadlineError(f"the sandboxed program still runs after {timeout_s:g} s") from error
        return int(body.get("status", 1))

    async def kill(self) -> None:
        self._kill()
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), 10)
        except TimeoutError as error:
            raise DeadlineError("the sandboxed program survives being killed") from error
        finally:
            self._close_stdin()
            self._close_stdout()
