"""Pipes between asyncrl and a sandboxed program: bounded reading, writing that never blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

CHUNK_BYTES = 65536
FLOOD_BYTES = 16 << 20
"""A program that writes this much past the limit is killed instead of drained."""


class BoundedReader:
    """Keeps the first `limit` bytes of a pipe and drains the rest, up to a flood."""

    def __init__(self, fd: int, limit: int, on_flood: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd, self._limit, self._on_flood = fd, limit, on_flood
        self._total = 0
        self.data = bytearray()
        self.done = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._on_readable)

    @property
    def truncated(self) -> bool:
        return self._total > self._limit

    def _on_readable(self) -> None:
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        flooded_before = self._total > self._limit + FLOOD_BYTES
        self._total += len(chunk)
        self.data += chunk[: self._limit - len(self.data)]
        if self._total > self._limit + FLOOD_BYTES and not flooded_before:
            self._on_flood()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if not self.done.done():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.done.set_result(None)

    async def finish(self, grace_s: float) -> bytes:
        """Return the kept bytes, once the pipe ends or `grace_s` after the program did (a leftover may hold it
        open)."""
        if not self.done.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.done), grace_s)
        self.close()
        return bytes(self.data)


async def write_all(fd: int, data: bytes) -> None:
    """Write everything to a pipe, or as much as its reader accepts before it closes."""
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    os.set_blocking(fd, False)
    while view:
        try:
            view = view[os.write(fd, view[:CHUNK_BYTES]) :]
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(fd, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(fd)
        except OSError:
            return
