"""Fetches one file over HTTP, chunk by chunk, from sources that may die, hang or have no more of it than we do.

Sources are taken in order of preference: the engine above this one in the tree, those above that, the trainer. An
interrupted chunk goes on at the byte it had reached, and a file that a fetch left incomplete is completed by the next
one: what is there already is told by its checksums.
"""

from __future__ import annotations

import http.client
import json
import logging
import mmap
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from asyncrl.errors import AsyncRLError, UnavailableError
from asyncrl.tls import client_context
from asyncrl.weights.chunks import Chunks, matching

log = logging.getLogger("asyncrl.weights")

CONNECTIONS = 4
"""Chunks that are fetched at once, so that a long way does not leave the line empty between two of them."""
READ_BYTES = 2**18
PAUSE_S = 0.1
"""Before a source that dropped a connection is asked again."""
NOT_YET = 503
FINAL = (400, 401, 403, 404, 405, 416)
"""Answers that another attempt would not change."""


class _Source:
    """One place to fetch from, and when it last helped. Used by several threads."""

    def __init__(self, url: str, is_last: bool, stall_s: float) -> None:
        self.url = url
        self.address = urlsplit(url)
        self.reason = ""
        """Why it is given up, "" while it is not."""
        self._is_last = is_last
        self._stall_s = stall_s
        self._last_error = ""
        self._received_bytes = -1
        self._moved = 0.0

    def usable(self) -> bool:
        now = time.monotonic()
        self._moved = self._moved or now
        if not self.reason and now - self._moved > self._stall_s:
            self.give_up(
                f"no bytes within {self._stall_s:g} s" + (self._last_error and f"; {self._last_error}")
            )
        return not self.reason

    def gave(self) -> None:
        self._moved = time.monotonic()

    def waits(self, received_bytes: int) -> None:
        """Take note of how much it has itself: a source that receives more will have the chunk."""
        if received_bytes > self._received_bytes:
            self._received_bytes = received_bytes
            self.gave()

    def failed(self, error: Exception) -> None:
        self._last_error = f"{type(error).__name__}: {error}"
        if isinstance(error, ConnectionRefusedError) and not self._is_last:
            self.give_up("refuses connections")

    def give_up(self, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            log.warning("no weights from %s any more: %s", self.url, reason)


class Fetch:
    """Fills the file `path`, which has its full size already, in threads of its own.

    sources: base addresses, preferred first. route: the file's path there. headers: of each request. stall_s: a source
    that neither gives bytes nor gets more itself for this long is given up. resume: whether `path` may hold chunks.
    """

    def __init__(
        self,
        chunks: Chunks,
        path: Path,
        sources: Sequence[str],
        route: str,
        headers: Mapping[str, str],
        stall_s: float,
        resume: bool = False,
    ) -> None:
        self.chunks = chunks
        self.path = path
        self.received_bytes = 0
        self.fetched_bytes = 0
        """Of `received_bytes`, those that came over the network."""
        self.error = ""
        self._route = route
        self._headers = dict(headers)
        self.stall_s = stall_s
        self._sources = [_Source(url, url == sources[-1], stall_s) for url in sources]
        self._have = bytearray(len(chunks))
        self._wanted: deque[int] = deque()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._cancelled = False
        self._resume = resume
        threading.Thread(target=self._run, name="weights-fetch", daemon=True).start()

    @property
    def ended(self) -> bool:
        """True once the file is complete or `error` says why it is not."""
        return self._ended.is_set()

    @property
    def complete(self) -> bool:
        return self.ended and not self.error

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came."""
        return self._ended.wait(timeout_s)

    def has(self, start: int, stop: int) -> bool:
        """True if these bytes are there and checked."""
        return 0 <= start < stop <= self.chunks.num_bytes and all(
            self._have[index] for index in self.chunks.covering(start, stop)
        )

    def cancel(self) -> None:
        """Stop; what was fetched stays in the file."""
        self._cancelled = True

    def _run(self) -> None:
        try:
            held = matching(self.chunks, self.path) if self._resume else []
            for index in held:
                self._have[index] = 1
                start, stop = self.chunks.span(index)
                self.received_bytes += stop - start
            self._wanted.extend(index for index in range(len(self.chunks)) if not self._have[index])
            workers = [
                threading.Thread(target=self._work, name=f"weights-fetch-{number}", daemon=True)
                for number in range(min(CONNECTIONS, len(self._wanted)))
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            if self._cancelled and not all(self._have):
                self._fail("given up for another version")
        except OSError as error:
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._ended.set()

    def _work(self) -> None:
        connections: dict[str, http.client.HTTPConnection] = {}
        try:
            with open(self.path, "r+b") as file, mmap.mmap(file.fileno(), self.chunks.num_bytes) as target:
                while not self._stopped and (index := self._next()) is not None:
                    start, stop = self.chunks.span(index)
                    with memoryview(target)[start:stop] as place:
                        self._bring(index, place, connections)
        except (AsyncRLError, OSError) as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("fetching %s", self.path)
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            for connection in connections.values():
                connection.close()

    @property
    def _stopped(self) -> bool:
        return self._cancelled or bool(self.error)

    def _next(self) -> int | None:
        try:
            return self._wanted.popleft()
        except IndexError:
            return None

    def _fail(self, error: str) -> None:
        self.error = self.error or error

    def _bring(
        self, index: int, place: memoryview, connections: dict[str, http.client.HTTPConnection]
    ) -> None:
        """Fill one chunk. Raises `UnavailableError` when no source is left."""
        first, _ = self.chunks.span(index)
        at, givers = 0, set()
        while not self._stopped:
            source = self._choose()
            try:
                for count in self._read(source, first + at, place[at:], connections):
                    at += count
                    givers.add(source)
                    if self._stopped:
                        return
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                if (connection := connections.pop(source.url, None)) is not None:
                    connection.close()
                source.failed(error)
                time.sleep(PAUSE_S)
            if at < len(place):
                continue
            if self.chunks.matches(index, place):
                self._have[index] = 1
                return
            if len(givers) == 1:
                source.give_up(f"its bytes {first} to {first + len(place)} have another checksum")
            self._count(-at, 0)
            at, givers = 0, set()

    def _choose(self) -> _Source:
        for source in self._sources:
            if source.usable():
                return source
        raise UnavailableError("; ".join(f"{source.url}: {source.reason}" for source in self._sources))

    def _read(
        self,
        source: _Source,
        first: int,
        into: memoryview,
        connections: dict[str, http.client.HTTPConnection],
    ) -> Iterator[int]:
        """Ask for the bytes from `first` on; yield how many came each time, none if the source lacks them yet.

        Raises OSError, HTTPException, ValueError, KeyError, TypeError where the connection breaks or the answer is odd.
        """
        connection = connections.get(source.url)
        if connection is None:
            secure = source.address.scheme == "https"
            where = source.address.netloc
            connection = connections[source.url] = (
                http.client.HTTPSConnection(where, timeout=self.stall_s, context=client_context())
                if secure
                else http.client.HTTPConnection(where, timeout=self.stall_s)
            )
        headers = self._headers | {"Range": f"bytes={first}-{first + len(into) - 1}"}
        connection.request("GET", source.address.path.rstrip("/") + self._route, headers=headers)
        response = connection.getresponse()
        if response.status == NOT_YET:
            source.waits(int(json.loads(response.read())["received_bytes"]))
            return
        if response.status != http.client.PARTIAL_CONTENT:
            reason = f"HTTP {response.status}: {response.read()[:200]!r}"
            if response.status in FINAL:
                source.give_up(reason)
                return
            raise http.client.HTTPException(reason)
        at = 0
        while at < len(into):
            count = response.readinto(into[at : at + READ_BYTES])
            if not count:
                raise http.client.IncompleteRead(b"", len(into) - at)
            at += count
            source.gave()
            self._count(count, count)
            yield count

    def _count(self, received: int, fetched: int) -> None:
        with self._lock:
            self.received_bytes += received
            self.fetched_bytes += fetched
