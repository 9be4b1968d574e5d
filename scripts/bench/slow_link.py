"""A TCP service behind a link with a delay and a rate, in user space: what a service is like from another region."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from asyncrl.credentials import Credentials
from asyncrl.extensions.http_weights.source import HttpWeightSource
from asyncrl.weights.files import WeightFile

PIECE_BYTES = 16 * 1024
QUEUED_PIECES = 64


class SlowLink:
    """Forwards connections to the service at `url` until `close`; `self.url` is its address behind the link.

    delay_s: one way. bytes_per_s: of each direction, over all connections; 0 for no limit.
    """

    def __init__(self, url: str, delay_s: float = 0.0, bytes_per_s: float = 0.0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s
        self.carried_bytes = 0
        """From the service to its callers."""
        self.silent_after: int | None = None
        """Let nothing pass once this many bytes have come from the service; connections stay open, as when it hangs."""
        self.cut_after: int | None = None
        """Break all connections once, when this many bytes have come from the service."""
        self.cuts = 0
        self._free = [0.0, 0.0]
        """When each direction has sent what it was given."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._run(started),), daemon=True
        )
        self._thread.start()
        started.wait(30)
        self.url = f"{parts.scheme}://127.0.0.1:{self._port}{parts.path}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _run(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        server.close()
        self._break()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, away = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, away}
        try:
            await asyncio.gather(self._forward(reader, away, 0), self._forward(there, writer, 1))
        finally:
            for one in (writer, away):
                self._writers.discard(one)
                one.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(QUEUED_PIECES)
        delivery = asyncio.ensure_future(self._deliver(queue, writer))
        try:
            with contextlib.suppress(OSError):
                while piece := await reader.read(PIECE_BYTES):
                    if direction == 1:
                        self.carried_bytes += len(piece)
                        if self.cut_after is not None and self.carried_bytes >= self.cut_after:
                            self.cut_after, self.cuts = None, self.cuts + 1
                            self._break()
                    now = time.monotonic()
                    sent = max(now, self._free[direction])
                    if self._bytes_per_s:
                        sent += len(piece) / self._bytes_per_s
                    self._free[direction] = sent
                    await queue.put((sent + self._delay_s, piece))
            await queue.put((time.monotonic() + self._delay_s, b""))
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, piece = await queue.get()
                await asyncio.sleep(due - time.monotonic())
                while self.silent_after is not None and self.carried_bytes >= self.silent_after:
                    await asyncio.sleep(0.05)
                if not piece:
                    writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class SourceBehindLink:
    """The trainer's weights as engines see them through a link. settings: of the `SlowLink`."""

    def __init__(self, credentials: Credentials, **settings: float) -> None:
        self.source = HttpWeightSource(credentials)
        self.settings = settings
        self.link: SlowLink | None = None

    @property
    def carried_bytes(self) -> int:
        return self.link.carried_bytes if self.link is not None else 0

    def offer(self, file: WeightFile, engines: Sequence[str]) -> str:
        url = self.source.offer(file, engines)
        if self.link is None:
            self.link = SlowLink(url, **self.settings)
        return self.link.url

    def close(self) -> None:
        self.source.close()
        if self.link is not None:
            self.link.close()
