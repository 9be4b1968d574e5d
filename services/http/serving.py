"""Runs an app of `services.http.app` as a process: binds, announces its address, drains and exits."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from asyncrl.data.memory import keep_freed_memory
from asyncrl.endpoint import advertised_host, announce, in_url
from asyncrl.errors import ConfigError
from asyncrl.http_clients import exempt
from asyncrl.http_limits import PromptHttpProtocol
from asyncrl.process_hooks import collect_only_new_objects
from asyncrl.tls import own_files, scheme

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Longer than the clients' own limit, so that the client closes idle connections."""
NEW_OBJECTS = 10_000
"""New objects between two garbage collections. Nearly all that a request makes is freed without one."""
DRAIN_S = 10
"""How long requests may continue after SIGTERM."""


def serve(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 0,
    ready_file: str | Path | None = None,
    serving: Callable[[str], None] | None = None,
    advertise: str = "",
) -> None:
    """Serve until SIGTERM or SIGINT, then drain for `DRAIN_S` and return. Over HTTPS where there is a certificate
    (`asyncrl.tls`).

    port: 0 takes a free one. ready_file: gets `{"url", "pid"}` in one atomic write once requests are served, and is
    removed at the end. serving: called with the address before that. advertise: the host in that address,
    "" for the one that `advertised_host` finds. Raises `ConfigError` for an address that cannot be used, and the error
    that ended a background task of the app.
    """
    tls = own_files()
    announced = advertised_host(host, advertise)
    app.state.hosts.bound, app.state.hosts.advertised = host, announced
    exempt(announced)
    keep_freed_memory()
    collect_only_new_objects()
    gc.set_threshold(NEW_OBJECTS)
    listener = _listen(host, port)
    url = f"{scheme()}://{in_url(announced)}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        app,
        http=PromptHttpProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        ws=getattr(app.state, "websockets", "none"),
        ssl_certfile=tls.certificate if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
    )
    server = _Server(config, url, Path(ready_file) if ready_file else None, serving)
    app.state.request_exit = server.stop
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal again after draining, although a drained service has ended normally.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
        server.retract()
    if app.state.failure is not None:
        raise app.state.failure
    if not server.started:
        raise ConfigError(f"{app.title} did not start; see the log above")


class _Server(uvicorn.Server):
    """Announces the address once it serves, and notifies waiting routes when shutdown begins."""

    def __init__(
        self, config: uvicorn.Config, url: str, ready_file: Path | None, serving: Callable[[str], None] | None
    ) -> None:
        super().__init__(config)
        self.url = url
        self.serving = serving
        self.ready_file = ready_file
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.retract()
        await super().startup(sockets)
        if self.started and self.serving is not None:
            self.serving(self.url)
        if self.started and self.ready_file is not None:
            announce(self.ready_file, self.url, os.getpid())

    def stop(self) -> None:
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.config.app.state.stopping.set)  # type: ignore[union-attr]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.stop()

    def retract(self) -> None:
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason: Any = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from None
    return listener
