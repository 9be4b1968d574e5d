"""The HTTP client all service clients share: aiohttp underneath, msgpack out, errors back as their classes."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import msgpack

from asyncrl import errors
from asyncrl.errors import AsyncRLError, InputError, UnavailableError

RETRY_PAUSES_S = (0.05, 0.2, 0.5, 1.0)
RETRIED = (aiohttp.ClientConnectionError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, OSError)


class HttpClient:
    """One service's address. Calls that may be repeated are, through dropped connections, until their deadline."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, path: str, body: Any = None, timeout_s: float = 30.0, repeat: bool = True) -> Any:
        """POST `body` (bytes as they are, anything else as msgpack); return the decoded answer.

        Raises the error class the service named, or `UnavailableError` when it cannot be reached in time.
        """
        data = body if isinstance(body, bytes) else msgpack.packb(body if body is not None else {})
        return await self._call("POST", path, data, timeout_s, repeat)

    async def get(self, path: str, timeout_s: float = 30.0) -> Any:
        """GET and decode."""
        return await self._call("GET", path, None, timeout_s, True)

    async def _call(self, method: str, path: str, data: bytes | None, timeout_s: float, repeat: bool) -> Any:
        deadline = time.monotonic() + timeout_s
        for attempt in range(len(RETRY_PAUSES_S) + 1):
            timeout = aiohttp.ClientTimeout(total=max(0.1, deadline - time.monotonic()))
            try:
                async with self._open().request(method, path, data=data, timeout=timeout) as response:
                    return _decode(response, await response.read(), self.url + path)
            except TimeoutError as error:
                raise UnavailableError(f"{self.url}{path}: no answer within {timeout_s:g} s") from error
            except RETRIED as error:
                left_s = deadline - time.monotonic()
                if not repeat or attempt == len(RETRY_PAUSES_S) or left_s <= 0:
                    raise UnavailableError(f"{self.url}{path}: {type(error).__name__}: {error}") from error
                await asyncio.sleep(min(RETRY_PAUSES_S[attempt], left_s))
        raise AssertionError("unreachable")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                self.url, headers=self._headers, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0)
            )
        return self._session


def _decode(response: aiohttp.ClientResponse, raw: bytes, where: str) -> Any:
    packed = response.content_type == "application/msgpack"
    try:
        body = msgpack.unpackb(raw) if packed else json.loads(raw)
    except Exception as error:
        raise InputError(f"{where}: HTTP {response.status} with an unreadable body ({error})") from error
    if response.status < 400:
        return body
    problem = body.get("error", {}) if isinstance(body, dict) else {}
    kind = getattr(errors, str(problem.get("type")), None)
    message = f"{where}: {problem.get('message', f'HTTP {response.status}')}"
    if isinstance(kind, type) and issubclass(kind, AsyncRLError):
        raise kind(message)
    raise InputError(message) if response.status < 500 else UnavailableError(message)
