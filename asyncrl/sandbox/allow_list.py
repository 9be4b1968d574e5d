"""A network allow-list: the sandbox has a loopback device only, and a proxy outside decides what it reaches.

    program --HTTP proxy on 127.0.0.1:3128--> AllowListProxy (outside) --> host

The proxy's socket listens inside and is served outside, so that nothing of it runs beside the program. An allowed port
of this machine's loopback also listens inside, under its own address, for programs that use no proxy, such as Node's
`fetch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from asyncrl.errors import ConfigError

PORT = 3128
URL = f"http://127.0.0.1:{PORT}"
PROXY_ENV = {"http_proxy": URL, "https_proxy": URL, "HTTP_PROXY": URL, "HTTPS_PROXY": URL}
HEAD_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 3600.0
"""The longest silence of either direction. A model may be sampled for minutes, and whoever asked it sends nothing
meanwhile."""
MAX_HEAD_BYTES = 65536
MAX_CONNECTIONS = 64
MAX_RELAYED = 15
"""Ports of the loopback that may listen inside."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

LOOPBACK = "127.0.0.1"
NO_PROXY_ENV = {"no_proxy": LOOPBACK, "NO_PROXY": LOOPBACK}
"""Where a port of the loopback is relayed."""


def relayed(entries: tuple[str, ...]) -> list[int]:
    """Return the ports of the loopback that `entries` name, which listen inside, too; those that need rights do not.

    Raises `ConfigError` for more than `MAX_RELAYED`.
    """
    ports = sorted(
        port for host, port in parse(entries) if host == LOOPBACK and port >= 1024 and port != PORT
    )
    if len(ports) > MAX_RELAYED:
        raise ConfigError(
            f"an allow-list may name at most {MAX_RELAYED} ports of {LOOPBACK}, got {len(ports)}"
        )
    return ports


def environment(entries: tuple[str, ...]) -> dict[str, str]:
    """Return the variables by which programs find the proxy."""
    return PROXY_ENV | (NO_PROXY_ENV if relayed(entries) else {})


def parse(entries: tuple[str, ...]) -> set[tuple[str, int]]:
    """`host` (ports 80 and 443) and `host:port` entries as pairs. Raises `ConfigError`."""
    allowed = set()
    for entry in entries:
        host, _, port = entry.partition(":")
        if (
            not host
            or "/" in entry
            or "*" in entry
            or (port and not (port.isdigit() and 0 < int(port) < 65536))
        ):
            raise ConfigError(
                f"entry {entry!r} of an allow-list must be 'host' or 'host:port', without wildcards"
            )
        allowed |= {(host.lower(), int(port))} if port else {(host.lower(), 80), (host.lower(), 443)}
    return allowed


class AllowListProxy:
    """An HTTP proxy on a Unix socket: CONNECT and absolute-form requests, to allowed hosts only."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._allowed = parse(entries)
        self.ports = [PORT, *relayed(entries)]
        """What listens inside."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, sockets: Sequence[int]) -> None:
        """Serve descriptors that listen on `ports`, in this order; they are closed by `stop`."""
        for port, fd in zip(self.ports, sockets, strict=True):
            serve = self._serve if port == PORT else functools.partial(self._relay, port)
            accept = functools.partial(self._accept, serve)
            server = await asyncio.start_server(accept, sock=socket.socket(fileno=fd), limit=MAX_HEAD_BYTES)
            self._servers.append(server)

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await serve(reader, writer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT_S)
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("ascii", "replace").split(" ", 2)
        url = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = (url.hostname or "").lower(), url.port or (443 if method == "CONNECT" else 80)
        if (host, port) not in self._allowed:
            writer.write(
                f"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n{host}:{port} is not allowed\n".encode()
            )
            await writer.drain()
            return
        try:
            out_reader, out_writer = await _connect(host, port)
        except (OSError, TimeoutError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = url.path or "/"
                path += f"?{url.query}" if url.query else ""
                # One request per connection: the next one could name another host.
                lines = [
                    h for h in rest.split(b"\r\n") if not h.lower().startswith((b"proxy-", b"connection:"))
                ]
                headers = b"\r\n".join([b"Connection: close", *lines])
                out_writer.write(f"{method} {path} {version}\r\n".encode() + headers)
            await asyncio.gather(_copy(reader, out_writer), _copy(out_reader, writer))
        finally:
            out_writer.close()

    async def _relay(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out_reader, out_writer = await _connect(LOOPBACK, port)
        try:
            await asyncio.gather(_copy(reader, out_writer), _copy(out_reader, writer))
        finally:
            out_writer.close()


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.wait_for(asyncio.open_connection(host, port), HEAD_TIMEOUT_S)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        while data := await asyncio.wait_for(reader.read(65536), IDLE_TIMEOUT_S):
            writer.write(data)
            await asyncio.wait_for(writer.drain(), IDLE_TIMEOUT_S)
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
