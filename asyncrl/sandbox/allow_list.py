"""A network allow-list: the sandbox has a loopback device only, and a proxy outside decides what it reaches.

    program --HTTP proxy on 127.0.0.1:3128--> forwarder (inside) --unix socket--> AllowListProxy (outside) --> host

An allowed port of this machine's loopback also listens inside, under its own address, for programs that use no proxy,
such as Node's `fetch`. The forwarder enforces nothing: a program that bypasses it still finds only the same socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from urllib.parse import urlsplit

from asyncrl.errors import ConfigError

INNER_FOLDER = "/run/asyncrl"
SOCKET = "proxy"
PORT = 3128
URL = f"http://127.0.0.1:{PORT}"
PROXY_ENV = {"http_proxy": URL, "https_proxy": URL, "HTTP_PROXY": URL, "HTTPS_PROXY": URL}
HEAD_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 3600.0
"""The longest silence of either direction. A model may be sampled for minutes, and whoever asked it sends nothing
meanwhile."""
MAX_HEAD_BYTES = 65536
MAX_CONNECTIONS = 64

FORWARDER = f"""
import os, socket, sys, threading
relayed = [int(port) for port in sys.argv[1].split(",") if port]
servers = {{port: socket.create_server(("127.0.0.1", port), backlog=64) for port in [{PORT}, *relayed]}}
child = os.fork()
if child == 0:
    for server in servers.values():
        server.close()
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(f"{{sys.argv[2]}}: {{error.strerror}}", file=sys.stderr)
        os._exit(127)
def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for sock in (source, target):
        try:
            sock.shutdown(socket.SHUT_RDWR if sock is source else socket.SHUT_WR)
        except OSError:
            pass
def connect(inner, port):
    outer = socket.socket(socket.AF_UNIX)
    try:
        outer.connect("{INNER_FOLDER}/{SOCKET}")
        if port != {PORT}:
            outer.sendall(f"CONNECT 127.0.0.1:{{port}} HTTP/1.1\\r\\n\\r\\n".encode())
            head = b""
            while not head.endswith(b"\\r\\n\\r\\n"):
                byte = outer.recv(1)
                if not byte:
                    raise OSError("refused")
                head += byte
            if b" 200 " not in head.split(b"\\r\\n")[0]:
                raise OSError("refused")
    except OSError:
        inner.close()
        outer.close()
        return
    threading.Thread(target=pump, args=(inner, outer), daemon=True).start()
    pump(outer, inner)
def accept(port):
    while True:
        inner, _ = servers[port].accept()
        threading.Thread(target=connect, args=(inner, port), daemon=True).start()
for port in servers:
    threading.Thread(target=accept, args=(port,), daemon=True).start()
status = os.waitpid(child, 0)[1]
os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
"""


LOOPBACK = "127.0.0.1"
NO_PROXY_ENV = {"no_proxy": LOOPBACK, "NO_PROXY": LOOPBACK}
"""Where a port of the loopback is relayed."""


def wrap(argv: list[str], entries: tuple[str, ...]) -> list[str]:
    """Return the command that runs `argv` next to a forwarder."""
    return ["python3", "-I", "-S", "-c", FORWARDER, ",".join(map(str, relayed(entries))), *argv]


def relayed(entries: tuple[str, ...]) -> list[int]:
    """Return the ports of the loopback that `entries` name, which listen inside, too; those that need rights do not."""
    return sorted(port for host, port in parse(entries) if host == LOOPBACK and port >= 1024 and port != PORT)


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
            raise ConfigError(f"allow_hosts entry {entry!r} must be 'host' or 'host:port', without wildcards")
        allowed |= {(host.lower(), int(port))} if port else {(host.lower(), 80), (host.lower(), 443)}
    return allowed


class AllowListProxy:
    """An HTTP proxy on a Unix socket: CONNECT and absolute-form requests, to allowed hosts only."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._allowed = parse(entries)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, folder_fd: int) -> None:
        """Listen in the folder of a descriptor, which may have no path in this process's view."""
        path = f"/proc/self/fd/{folder_fd}/{SOCKET}"
        self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_HEAD_BYTES)
        os.chmod(path, 0o666)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
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
            out_reader, out_writer = await asyncio.wait_for(
                asyncio.open_connection(host, port), HEAD_TIMEOUT_S
            )
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


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        while data := await asyncio.wait_for(reader.read(65536), IDLE_TIMEOUT_S):
            writer.write(data)
            await asyncio.wait_for(writer.drain(), IDLE_TIMEOUT_S)
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
