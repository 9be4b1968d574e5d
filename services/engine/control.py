"""The control routes of one engine: what the trainer and the launcher ask of it. `client` adds sampling."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgpack

from asyncrl.credentials import authorization, bearer
from asyncrl.errors import InfrastructureError, InputError
from asyncrl.services.engine.messages import (
    MAX_CONTROL_BYTES,
    MAX_ERROR_BYTES,
    GarbageError,
    checked_state,
    unpacked,
)
from asyncrl.tls import client_context

IDLE_S = 4.0
"""After which an idle connection is not used again: less than a vLLM that others have started keeps it open."""


class EngineControl:
    """Calls one engine's `/asyncrl/v1` routes.

    url: that under which an engine serves the policy. token: a bearer token; None for that of this process, see
    `credentials`. timeout_s: for an answer whose call says nothing else.
    """

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.token = bearer(token, "engine")
        self._headers = {"Content-Type": "application/msgpack"} | authorization(self.token)
        self.http: aiohttp.ClientSession | None = None
        """The connections, None before the first call."""

    async def close(self) -> None:
        """Close connections."""
        if self.http is not None:
            await self.http.close()
            self.http = None

    def session(self) -> aiohttp.ClientSession:
        """Return the connections to the engine, which are made when they are first asked for."""
        if self.http is None:
            self.http = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=IDLE_S, ssl=client_context() or True
                ),
                timeout=aiohttp.ClientTimeout(total=None, connect=30.0, sock_read=self.timeout_s),
                read_bufsize=1 << 20,
            )
        return self.http

    async def request(
        self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """Call a control route (`state`, `weights/prepare`, ...). Raises `InfrastructureError`, `InputError`;
        `GarbageError` for what is no answer."""
        method, data = ("GET", None) if body is None else ("POST", msgpack.packb(body))
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self.session().request(
                method, f"{self.url}/asyncrl/v1/{path}", data=data, timeout=timeout
            ) as response:
                if response.status != 200:
                    raise InputError(f"engine {self.url}: {path}: {await error_text(response)}")
                return unpacked(await _read(response, MAX_CONTROL_BYTES))
        except GarbageError as error:
            raise GarbageError(f"engine {self.url} answers with garbage: {path}: {error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise InfrastructureError(
                f"engine {self.url}: {path}: {type(error).__name__}: {error}"
            ) from error

    async def state(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """Return `{version, paused, running, waiting, kv_usage, kv_tokens, max_model_len}`, checked. Raises as
        `request`."""
        found = await self.request("state", timeout_s=timeout_s)
        try:
            return checked_state(found)
        except GarbageError as error:
            raise GarbageError(f"engine {self.url} answers with garbage: state: {error}") from None


async def error_text(response: aiohttp.ClientResponse) -> str:
    """Return what the answer to a call says is wrong."""
    try:
        raw = await _read(response, MAX_ERROR_BYTES)
    except GarbageError as error:
        return f"HTTP {response.status}: {error}"
    try:
        return str(unpacked(raw)["error"])[:2000]
    except (GarbageError, KeyError):
        return f"HTTP {response.status}: {raw[:200]!r}"


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return a whole body. Raises `GarbageError` for one of more than `most` bytes."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > most:
            raise GarbageError(f"it sent more than {most} bytes")
    return b"".join(parts)
