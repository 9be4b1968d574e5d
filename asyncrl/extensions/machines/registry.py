"""The launcher's service for nodes: they register again and again, and fetch the run's configuration and model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import Field

from asyncrl import __version__
from asyncrl.credentials import Access
from asyncrl.data.codec import pack, unpack
from asyncrl.errors import ConflictError, InputError, UnavailableError
from asyncrl.extensions.machines.client import PART_BYTES
from asyncrl.extensions.machines.messages import (
    BEAT_S,
    DATA_FILES,
    FileEntry,
    FileName,
    Message,
    Name,
    PolicyFiles,
    Register,
    RunFiles,
    Whole,
    checked,
)
from asyncrl.http_checks import MSGPACK
from asyncrl.services.http.app import create_app
from asyncrl.tls import VARIABLE as TLS
from asyncrl.tls import scheme
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.chunks import file_checksum


class FilePart(Message):
    policy: Name = MAIN_POLICY
    name: FileName
    offset: Whole
    size: int = Field(ge=1, le=PART_BYTES)


@dataclass(frozen=True, slots=True)
class _Registered:
    node: Register
    at: float


class Registry:
    """The nodes that have registered, and the run that they are to have. Used by several threads."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Registered] = {}
        self._lock = threading.Lock()
        self.run: RunFiles | None = None
        """None until `offer`."""
        self._models: dict[str, Path] = {}
        """By policy."""

    def offer(
        self,
        run: str,
        config: dict[str, Any],
        model: str,
        policies: Mapping[str, tuple[dict[str, Any], str]] | None = None,
    ) -> None:
        """Offer the run to nodes. model: a folder, whose files they fetch, or a name that each can load. policies: by
        name, configuration and model of the further ones of which something runs on nodes."""
        own = self._policy(MAIN_POLICY, config, model)
        further = {name: self._policy(name, *given) for name, given in (policies or {}).items()}
        self.run = RunFiles(run=run, policies=further, **own.model_dump())

    def _policy(self, name: str, config: dict[str, Any], model: str) -> PolicyFiles:
        folder = Path(model)
        if not folder.is_dir():
            return PolicyFiles(config=config, model=model)
        self._models[name] = folder
        paths = [
            path for path in sorted(folder.iterdir()) if path.is_file() and path.name.endswith(DATA_FILES)
        ]
        files = {
            path.name: FileEntry(size=path.stat().st_size, checksum=file_checksum(path)) for path in paths
        }
        return PolicyFiles(config=config, files=files)

    def register(self, node: Register) -> str:
        """Return the name of the run, "" while there is none.

        Raises `ConflictError` for another version of asyncrl, and `UnavailableError` for the name of a node that was
        there a moment ago: either another one, or this one before it was killed.
        """
        if node.version != __version__:
            raise ConflictError(
                f"node {node.name} has asyncrl {node.version}, the launcher {__version__}; install the same version on "
                "all machines"
            )
        if scheme() == "https" and not node.url.startswith("https:"):
            raise ConflictError(
                f"node {node.name} is not encrypted, the launcher is; set {TLS} on it, to its folder of asyncrl tls"
            )
        with self._lock:
            before, now = self._nodes.get(node.name), time.monotonic()
            if before is not None and before.node.boot != node.boot and now - before.at < BEAT_S / 2:
                raise UnavailableError(
                    f"there is a node {node.name} already, at {before.node.url}; give one of them another --name"
                )
            self._nodes[node.name] = _Registered(node, now)
        return self.run.run if self.run is not None else ""

    def nodes(self) -> list[Register]:
        """Return what each node said last, by name."""
        with self._lock:
            return [self._nodes[name].node for name in sorted(self._nodes)]

    def latest(self, name: str) -> Register:
        """Return what a node said last."""
        with self._lock:
            return self._nodes[name].node

    def read(self, part: FilePart) -> bytes:
        """Return a part of one of a model's files. Raises `InputError` for any other file."""
        policies = {} if self.run is None else {MAIN_POLICY: self.run, **self.run.policies}
        found = policies.get(part.policy)
        if found is None or part.name not in found.files:
            raise InputError(f"name: the model of policy {part.policy!r} has no file {part.name!r}")
        with open(self._models[part.policy] / part.name, "rb") as file:
            file.seek(part.offset)
            return file.read(part.size)


def create_registry_app(registry: Registry, access: Access) -> FastAPI:
    """Return the launcher's HTTP app. Only callers with the run's token may call it."""
    app = create_app("asyncrl launcher", access)

    @app.post("/v1/nodes")
    async def register(request: Request) -> dict[str, str]:
        """Register a node."""
        return {"run": registry.register(checked(Register, unpack(await request.body())))}

    @app.get("/v1/run")
    async def run() -> dict[str, Any]:
        """The run's configuration and the list of its model's files."""
        if registry.run is None:
            raise UnavailableError("the run is not ready yet", retry_after_s=1.0)
        return registry.run.model_dump()

    @app.post("/v1/file")
    async def file(request: Request) -> Response:
        """A part of a file of the model."""
        part = checked(FilePart, unpack(await request.body()))
        return Response(pack({"data": await asyncio.to_thread(registry.read, part)}), media_type=MSGPACK)

    return app
