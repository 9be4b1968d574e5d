"""The few calls of the Docker Engine API a sandbox needs, over its Unix socket. Podman speaks the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
from collections.abc import Callable
from typing import Any

import aiohttp

from asyncrl.errors import ConfigError, InfrastructureError

VERSION = "/v1.41"
TIMEOUT_S = 60.0
STDERR = 2
MAX_FRAME_BYTES = 1 << 26


def find_socket() -> str:
    """Return the path of the first existing engine socket. Raises `ConfigError`."""
    named = os.environ.get("DOCKER_HOST", "")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")
    candidates = [named.removeprefix("unix://")] if named.startswith("unix://") else []
    candidates += ["/var/run/docker.sock", f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    candidates.append("/run/podman/podman.sock")
    for path in candidates:
        if os.path.exists(path):
            return path
    raise ConfigError(
        "no Docker or Podman socket found; start 'podman system service' or Docker, or set DOCKER_HOST=unix://PATH"
    )


class DockerApi:
    """One connection pool. Every call has a deadline and raises `InfrastructureError` with the engine's words."""

    def __init__(self, socket_path: str) -> None:
        self._path = socket_path
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=socket_path), timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        )

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            async with self._session.request(method, f"http://engine{VERSION}{path}", json=body) as reply:
                text = await reply.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"container engine at {self._path}: {error!r}") from error
        if reply.status >= 400:
            raise InfrastructureError(f"container engine: {method} {path}: {reply.status} {text[:500]}")
        return json.loads(text) if text.startswith(("{", "[")) else None

    async def attach(self, exec_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a prepared exec and take over its connection for stdin and framed output."""
        reader, writer = await asyncio.wait_for(_open_connection(self._path), TIMEOUT_S)
        body = json.dumps({"Detach": False, "Tty": False}).encode()
        head = (
            f"POST {VERSION}/exec/{exec_id}/start HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        try:
            reply = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
        except (asyncio.IncompleteReadError, TimeoutError, OSError) as error:
            writer.close()
            raise InfrastructureError(f"container engine does not start the program: {error!r}") from error
        if reply.split(b" ", 2)[1] not in (b"101", b"200"):
            writer.close()
            raise InfrastructureError(f"container engine does not start the program: {reply[:300]!r}")
        return reader, writer

    async def close(self) -> None:
        await self._session.close()


class _KeepsWhatCame(asyncio.StreamReader):
    """Ends where the connection is reset, as an engine does that leaves a program's input unread.

    A plain reader raises the reset before it gives out what had come until then, so the output would be lost wherever
    both arrive before it is read.
    """

    def set_exception(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self.feed_eof()
        else:
            super().set_exception(exc)


async def _open_connection(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = _KeepsWhatCame()
    transport, protocol = await loop.create_unix_connection(
        lambda: asyncio.StreamReaderProtocol(reader), path
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def read_frames(reader: asyncio.StreamReader, take: Callable[[bool, bytes], None]) -> None:
    """Pass every piece of output to `take(is_stderr, data)` until the program ends."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            kind, length = struct.unpack(">BxxxI", await reader.readexactly(8))
            if length > MAX_FRAME_BYTES:
                raise InfrastructureError(f"container engine sent a frame of {length} bytes")
            take(kind == STDERR, await reader.readexactly(length))
