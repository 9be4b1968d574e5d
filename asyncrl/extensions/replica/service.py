"""The second place of a run's ledger, for a buffer on another machine, and the address under which it is found.

    asyncrl serve replica --folder runs/NAME

A buffer attaches and gets an epoch; what an earlier one still sends is refused from then on, so that nothing is
acknowledged by two. Every other call is redirected to where the buffer serves that attached last: callers that are
given this address find the buffer wherever it has moved.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from asyncrl.buffer.body_files import FileBody
from asyncrl.credentials import Access
from asyncrl.data.codec import pack
from asyncrl.disk import outage
from asyncrl.errors import ConflictError, InputError, UnavailableError
from asyncrl.extensions.replica.messages import Adopt, Bodies, Body, Bytes, Message, Part, Serving
from asyncrl.extensions.replica.replica import BODIES, EPOCH, LEDGER, FolderPlace, newest_generation
from asyncrl.http_checks import MSGPACK
from asyncrl.jsonfile import read_json, write_json
from asyncrl.services.buffer.messages import read
from asyncrl.services.command import Address
from asyncrl.services.http.app import ALL_ROLES, add_hot_route, create_app

CALLS = ("attach", "copy", "adopt", "append", "fold", "body", "bodies", "serving", "files", "read")
ROLES = {"": ALL_ROLES, **{f"/v1/replica/{name}": set[str]() for name in CALLS}}
"""Only who has the run's token may change or read the copy. All may ask where the buffer is."""


class ReplicaService:
    """The folder, who writes to it, and where that one serves. For any thread."""

    def __init__(self, folder: Path) -> None:
        self.place = FolderPlace(folder)
        self._file = folder / "writer.json"
        kept = read_json(self._file) or {}
        self.epoch, self.url = int(kept.get("epoch", 0)), str(kept.get("url", ""))
        self._lock = threading.Lock()

    def attach(self) -> dict[str, Any]:
        """Make the caller the one writer; return its epoch and the facts of the ledger that is here."""
        with self._lock:
            facts = self.place.facts()
            self.epoch = max(self.epoch, (facts or {}).get(EPOCH, 0)) + 1
            self._keep()
            return {"epoch": self.epoch, "facts": facts}

    def serving(self, message: Serving) -> None:
        """Redirect callers there from now on."""
        with self._lock:
            self._check(message)
            self.url = message.url.rstrip("/")
            self._keep()

    def copy(self, message: Bytes) -> None:
        """Take a piece of a whole copy; the first one begins it."""
        with self._lock:
            self._check(message)
            path = self.place.folder / "partial" / LEDGER
            if not message.offset:
                path = self.place.partial()
                path.touch(mode=0o600)
            with open(path, "rb+") as file:
                file.seek(message.offset)
                file.write(message.data)

    def adopt(self, message: Adopt) -> None:
        """Have the whole copy count. A repeated call finds that it does."""
        with self._lock:
            self._check(message)
            path = self.place.folder / "partial" / LEDGER
            if not path.exists():
                return
            if path.stat().st_size != message.size:
                raise InputError(f"size: {path.stat().st_size} bytes have come of {message.size}")
            self.place.adopt()

    def append(self, message: Bytes) -> None:
        """Write frames of the log."""
        with self._lock:
            self._check(message)
            if (size := self.place.log_bytes) < message.offset:
                raise InputError(f"offset: {message.offset} is behind the end of the log's copy, at {size}")
            self.place.append(message.data, message.offset)

    def fold(self, message: Message) -> None:
        """Move the log into the database."""
        with self._lock:
            self._check(message)
            self.place.fold()

    def body(self, message: Body) -> None:
        """Write a piece of the file of a body."""
        self._check(message)
        self.place.write_body(message.number, message.data, message.offset)

    def bodies(self, message: Bodies) -> dict[str, list[int]]:
        """Remove the bodies that are not named, and return the named ones that are not there."""
        with self._lock:
            self._check(message)
            named = [FileBody(number, size, checksum) for number, size, checksum in message.bodies]
            return {"missing": self.place.sweep_bodies(named)}

    def files(self, message: Message) -> dict[str, dict[str, int]]:
        """Return the names and sizes of the files of the newest copy."""
        with self._lock:
            self._check(message)
            found = [*self.place.generation.iterdir(), *(self.place.folder / BODIES).iterdir()]
            return {"files": {path.name: path.stat().st_size for path in found}}

    def read(self, part: Part) -> dict[str, bytes]:
        """Return a part of one of them."""
        self._check(part)
        folder = newest_generation(self.place.folder) if part.name.startswith(LEDGER) else None
        try:
            with open((folder or self.place.folder / BODIES) / part.name, "rb") as file:
                file.seek(part.offset)
                return {"data": file.read(part.size)}
        except FileNotFoundError:
            raise InputError(f"name: the replica has no file {part.name}") from None

    def _check(self, message: Message) -> None:
        if message.epoch != self.epoch:
            raise ConflictError(
                f"another buffer has attached to this replica (epoch {self.epoch}, this one has {message.epoch})"
            )

    def _keep(self) -> None:
        write_json(self._file, {"epoch": self.epoch, "url": self.url})


def create_replica_app(replica: ReplicaService, access: Access) -> FastAPI:
    """Return the HTTP app. `access` is a buffer's: callers of the buffer come here first."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        yield
        replica.place.close()

    app = create_app("asyncrl replica", access, ROLES, lifespan=opened)

    def add(name: str, kind: type[Message], act: Callable[[Any], Any]) -> None:
        async def answer(request: Request) -> Response:
            message = await read(request, kind)
            return Response(pack(await asyncio.to_thread(_on_disk, act, message) or {}), media_type=MSGPACK)

        add_hot_route(app, f"/v1/replica/{name}", answer)

    add("attach", Message, lambda message: replica.attach())
    add("serving", Serving, replica.serving)
    add("copy", Bytes, replica.copy)
    add("adopt", Adopt, replica.adopt)
    add("append", Bytes, replica.append)
    add("fold", Message, replica.fold)
    add("body", Body, replica.body)
    add("bodies", Bodies, replica.bodies)
    add("files", Message, replica.files)
    add("read", Part, replica.read)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def elsewhere(path: str, request: Request) -> Response:
        """The buffer's calls are answered where it serves."""
        if not replica.url:
            raise UnavailableError("no buffer has attached to this replica yet", retry_after_s=1.0)
        # Read, since a client that is still sending would see its connection break.
        await request.body()
        return Response(status_code=307, headers={"Location": f"{replica.url}/{path}"})

    return app


def _on_disk(act: Callable[[Any], Any], message: Message) -> Any:
    try:
        return act(message)
    except OSError as error:
        kind = outage(error) or UnavailableError
        raise kind(f"the replica cannot be written: {error}") from error


def serve_replica(folder: Path, address: Address) -> None:
    """Serve until stopped. Raises `ConfigError` for a folder that another service or buffer writes to."""
    replica = ReplicaService(folder)
    app = create_replica_app(replica, address.credentials.access("buffer"))
    address.serve(app)
