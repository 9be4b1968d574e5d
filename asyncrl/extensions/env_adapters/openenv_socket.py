"""OpenEnv's WebSocket protocol from the client's side: one socket is one environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError, UnavailableError
from asyncrl.extensions.env_adapters.requirements import need

EXTRA = "openenv"
MAX_MESSAGE_BYTES = 64 * 2**20
CLOSE_TIMEOUT_S = 2.0


class InvalidAction(Exception):
    """The server refuses the form of an action (VALIDATION_ERROR)."""


class OpenEnvSocket:
    """A connection to `url` (http, https, ws or wss, with or without a trailing /ws).

    token_env: environment variable that holds a bearer token, empty for none.
    timeout_s: bound on connecting and on every answer.
    """

    def __init__(self, url: str, token_env: str, timeout_s: float) -> None:
        self.url = socket_url(url)
        self.timeout_s = timeout_s
        self._headers = _authorization(token_env)
        self._socket: Any = None

    async def open(self) -> None:
        """Connect. Raises `InfrastructureError`."""
        client = need("websockets.asyncio.client", EXTRA)
        try:
            self._socket = await client.connect(
                self.url,
                additional_headers=self._headers,
                open_timeout=self.timeout_s,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=MAX_MESSAGE_BYTES,
            )
        except (OSError, TimeoutError, need("websockets.exceptions", EXTRA).WebSocketException) as error:
            raise InfrastructureError(f"OpenEnv server {self.url}: cannot connect: {error}") from error

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send one message and return the answer's data.

        Raises `InvalidAction`, `UnavailableError` when the server is full, `EnvironmentFailure` for its other
        errors, `InfrastructureError` when it is gone or silent.
        """
        errors = need("websockets.exceptions", EXTRA)
        try:
            async with asyncio.timeout(self.timeout_s):
                # A full server says so and closes before any request, so its message is read here.
                with contextlib.suppress(errors.ConnectionClosed):
                    await self._socket.send(json.dumps({"type": kind, "data": data}))
                answer = json.loads(await self._socket.recv())
        except TimeoutError as error:
            raise InfrastructureError(
                f"OpenEnv server {self.url}: no answer within {self.timeout_s:g} s"
            ) from error
        except (OSError, errors.WebSocketException) as error:
            raise InfrastructureError(f"OpenEnv server {self.url} is gone: {error}") from error
        except ValueError as error:
            raise EnvironmentFailure(f"OpenEnv server {self.url}: answered no JSON: {error}") from error
        return self._data(answer)

    async def close(self) -> None:
        """Send the end and close the socket; the server may be gone already."""
        if self._socket is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._socket.send('{"type": "close"}')
            with contextlib.suppress(Exception):
                await self._socket.close()

    def _data(self, answer: Any) -> dict[str, Any]:
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict):
            raise EnvironmentFailure(f"OpenEnv server {self.url}: malformed answer {str(answer)[:200]}")
        if answer.get("type") != "error":
            return data
        code, message = data.get("code"), str(data.get("message"))
        if code == "VALIDATION_ERROR":
            raise InvalidAction("; ".join([message, *_problems(data.get("errors"))])[:2000])
        if code == "CAPACITY_REACHED":
            raise UnavailableError(f"OpenEnv server {self.url} is full: {message}", retry_after_s=1.0)
        raise EnvironmentFailure(f"OpenEnv server {self.url}: {code}: {message[:2000]}")


def socket_url(url: str) -> str:
    """Return the address of the WebSocket. Raises `ConfigError` for an address without a known scheme."""
    scheme, separator, rest = url.partition("://")
    known = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if not separator or scheme not in known:
        raise ConfigError(f"url: must begin with http://, https://, ws:// or wss://, got {url!r}")
    rest = rest.rstrip("/")
    return f"{known[scheme]}://{rest if rest.endswith('/ws') else rest + '/ws'}"


def _problems(errors: Any) -> list[str]:
    """Return what pydantic found wrong with an action: field and reason."""
    found = errors if isinstance(errors, list) else []
    return [f"{'.'.join(map(str, e.get('loc') or ()))}: {e.get('msg')}" for e in found if isinstance(e, dict)]


def _authorization(token_env: str) -> dict[str, str]:
    if not token_env:
        return {}
    if not os.environ.get(token_env):
        raise ConfigError(f"token_env: environment variable {token_env} is not set")
    return {"Authorization": f"Bearer {os.environ[token_env]}"}
