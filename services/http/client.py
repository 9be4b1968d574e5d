"""The HTTP client all service clients share: aiohttp underneath, msgpack out, errors back as their classes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgpack
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from asyncrl import errors
from asyncrl.credentials import authorization
from asyncrl.errors import AsyncRLError, ConfigError, InputError, OutageError, UnavailableError
from asyncrl.outage_log import OutageLog
from asyncrl.tls import client_context

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
READ_BUFFER_BYTES = 4 * 2**20
SLOWEST_BYTES_PER_S = 20e6
"""A large body or answer that comes more slowly than this, beyond the call's own limit, has stopped."""
JOINED_BYTES = 2**18
"""Smaller bodies are faster in one piece."""
MOVED = 307
NO_LIMIT = aiohttp.ClientTimeout(total=None)
"""The limit is that of the whole attempt."""
KEEP_ALIVE_S = 30.0
"""Shorter than the services' own limit, so that idle connections are rarely found closed."""
RETRIED = (
    aiohttp.ClientConnectionError,
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientPayloadError,
    OSError,
)


class Pieces(Payload):
    """A body that is sent piece by piece: large ones are neither joined nor held twice."""

    _value: Sequence[bytes]

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces)
        self._size = self._length = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        if self._length <= JOINED_BYTES:
            await writer.write(b"".join(self._value))
            return
        for piece in self._value:
            await writer.write(piece)


class HttpClient:
    """A client of one service. It repeats calls through dropped connections and restarts, where they may be repeated.

    retry_s: how long calls are repeated that get no answer, as while a service restarts, or an `OutageError`, as while
    its disk is full or fails. Each attempt has the call's whole time limit, and as long again as large bodies and
    answers take to come. Where `url` redirects to another address, later calls go there, until that does not answer.
    """

    def __init__(self, url: str, token: str = "", retry_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._at = self.url
        """Where the service is."""
        self.retry_s = retry_s
        self._headers = authorization(token)
        self._session: aiohttp.ClientSession | None = None
        self._outages = OutageLog(log, "a call")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, path: str, body: Any = None, timeout_s: float = 30.0, repeat: bool = True) -> Any:
        """POST `body` (bytes and `Pieces` unchanged, anything else as msgpack); return the decoded answer.

        Raises the error class the service named, or `UnavailableError` when it cannot be reached in time.
        """
        data = body if isinstance(body, bytes | Pieces) else msgpack.packb(body if body is not None else {})
        return await self._call("POST", path, data, timeout_s, repeat)

    async def get(self, path: str, timeout_s: float = 30.0) -> Any:
        """GET and decode."""
        return await self._call("GET", path, None, timeout_s, True)

    async def _call(
        self, method: str, path: str, data: bytes | Pieces | None, timeout_s: float, repeat: bool
    ) -> Any:
        give_up = time.monotonic() + self.retry_s if repeat else 0.0
        limit_s = max(0.1, timeout_s) + _transfer_s(data)
        pause_s, failing, worked = FIRST_PAUSE_S, False, False
        try:
            while True:
                try:
                    answer = await self._once(method, path, data, limit_s)
                    worked = True
                    return answer
                except TimeoutError as error:
                    self._at = self.url
                    if time.monotonic() >= give_up:
                        raise UnavailableError(f"{self.url}{path}: no answer within {limit_s:g} s") from error
                except (OutageError, *RETRIED) as error:
                    self._at = self.url
                    left_s = give_up - time.monotonic()
                    is_outage = isinstance(error, OutageError)
                    if left_s <= 0 and is_outage:
                        raise
                    if left_s <= 0:
                        raise UnavailableError(
                            f"{self.url}{path}: {type(error).__name__}: {error}"
                        ) from error
                    if is_outage:
                        # Who is away is told elsewhere; what a service lacks would be told by nobody.
                        self._outages.failed(error, failing)
                        failing = True
                    await asyncio.sleep(min(pause_s, left_s))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if failing:
                self._outages.ended(worked)

    async def _once(self, method: str, path: str, data: bytes | Pieces | None, limit_s: float) -> Any:
        """Call where the service is, or has moved; return the decoded answer."""
        while True:
            # Other calls may find meanwhile that the service has moved.
            at = self._at
            async with (
                asyncio.timeout(limit_s) as limit,
                self._open().request(
                    method, at + path, data=data, timeout=NO_LIMIT, allow_redirects=False
                ) as response,
            ):
                if response.status == MOVED:
                    self._at = self._moved(response, at, path)
                    continue
                if response.content_length:
                    # How large it is nobody knows before: a batch may have gigabytes.
                    limit.reschedule((limit.when() or 0.0) + response.content_length / SLOWEST_BYTES_PER_S)
                return _decode(response, await response.read(), at + path)

    def _moved(self, response: aiohttp.ClientResponse, at: str, path: str) -> str:
        """Return where the service is, by the answer from `at`. It may not be called unencrypted when `url` is not."""
        found = response.headers.get("Location", "").removesuffix(path)
        if at != self.url or urlsplit(found).scheme != urlsplit(self.url).scheme:
            raise InputError(f"{at}{path}: redirects to {found!r:.200}")
        return found

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={"Content-Type": "application/msgpack"} | self._headers,
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=client_context() or True
                ),
                read_bufsize=READ_BUFFER_BYTES,
            )
        return self._session


def _transfer_s(data: bytes | Pieces | None) -> float:
    if data is None:
        return 0.0
    return (len(data) if isinstance(data, bytes) else data.size or 0) / SLOWEST_BYTES_PER_S


def _decode(response: aiohttp.ClientResponse, raw: bytes, where: str) -> Any:
    packed = response.content_type == "application/msgpack"
    try:
        body = msgpack.unpackb(raw) if packed else json.loads(raw)
    except Exception as error:
        raise InputError(f"{where}: HTTP {response.status} with an unreadable body ({error})") from error
    if response.status < 400:
        return body
    problem = body.get("error") if isinstance(body, dict) else None
    if not isinstance(problem, dict):
        problem = {}
    message = f"{where}: {problem.get('message', f'HTTP {response.status}')}"
    raise error_named(problem.get("type"), message, response.status, problem.get("retry_after_s"))


def error_named(name: Any, message: str, status: int, retry_after_s: float | None = None) -> AsyncRLError:
    """Return the error that a service named, or the one closest to its HTTP status."""
    kind = getattr(errors, str(name), None)
    if kind is UnavailableError or (status in (429, 502, 503, 504) and kind is None):
        return UnavailableError(message, retry_after_s)
    if isinstance(kind, type) and issubclass(kind, AsyncRLError):
        return kind(message)
    if status == 401:
        return ConfigError(f"{message}; give the service's token")
    return InputError(message) if status < 500 else UnavailableError(message)
