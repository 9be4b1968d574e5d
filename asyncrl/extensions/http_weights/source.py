"""Serves the trainer's weight files to engines, in a thread of the trainer's first rank."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from asyncrl.credentials import Credentials
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.http_weights.carrier import HttpCarrier
from asyncrl.extensions.http_weights.offered import BYTES_ROUTE, Offered, send_range
from asyncrl.services.http.app import create_app, serve
from asyncrl.weights.carrier import advertised
from asyncrl.weights.chunks import WHOLE
from asyncrl.weights.files import WeightFile

if TYPE_CHECKING:
    import torch

    from asyncrl.config import Config

START_S = 30.0
KEPT = 2
"""Versions that are offered: the newest, and the one before it while an engine still fetches that."""


class HttpWeightSource:
    """Implements `WeightSource`. It listens on this machine's address on the way to the engines, for them alone."""

    def __init__(self, credentials: Credentials) -> None:
        self._access = credentials.access("weights")
        self._files: dict[tuple[int, int, str], Path] = {}
        self._host = self._url = ""
        self._app: FastAPI | None = None
        self._thread: threading.Thread | None = None

    def offer(self, file: WeightFile, engines: Sequence[str]) -> str:
        """See `WeightSource`. Raises `UnavailableError` if it cannot listen."""
        for kind in (WHOLE, *file.forms):
            self._files[file.epoch, file.version, kind] = Path(file.source(kind)[0])
        kept = sorted({key[:2] for key in self._files})[-KEPT:]
        self._files = {key: path for key, path in self._files.items() if key[:2] in kept}
        host = advertised(engines)
        if host != self._host or self._thread is None or not self._thread.is_alive():
            self.close()
            self._listen(host)
        return self._url

    def find(self, epoch: int, version: int, kind: str) -> Offered | None:
        """Return a file that is offered."""
        path = self._files.get((epoch, version, kind))
        return Offered(path) if path is not None and path.is_file() else None

    def close(self) -> None:
        """See `WeightSource`."""
        if self._app is not None and self._thread is not None:
            self._app.state.request_exit()
            self._thread.join(START_S)
        self._app = self._thread = None
        self._host = self._url = ""

    def _listen(self, host: str) -> None:
        app = create_app("weights", self._access, roles={"": ("engine",)})
        path = BYTES_ROUTE.replace("{epoch}", "{epoch:int}").replace("{version}", "{version:int}")
        app.router.routes.append(Route(path, _Bytes(self)))
        started = threading.Event()
        reasons: list[str] = []

        def serving(url: str) -> None:
            self._url = url
            started.set()

        def run() -> None:
            try:
                serve(app, host, serving=serving)
            except ConfigError as error:
                reasons.append(str(error))
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="weights-source", daemon=True)
        self._thread.start()
        if not started.wait(START_S) or not self._url:
            raise UnavailableError(f"weights cannot be served at {host}: {'; '.join(reasons) or 'no start'}")
        self._app, self._host = app, host


class _Bytes:
    """The route as an ASGI app, which sends a file piece by piece."""

    def __init__(self, source: HttpWeightSource) -> None:
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted: dict[str, Any] = scope["path_params"]
        await send_range(
            lambda: self._source.find(wanted["epoch"], wanted["version"], wanted["kind"]),
            scope,
            receive,
            send,
        )


def http_carrier(config: Config, device: torch.device, credentials: Credentials) -> HttpCarrier:
    """Return what brings files where `engine.weight_transfer` is "http"."""
    return HttpCarrier(HttpWeightSource(credentials))
