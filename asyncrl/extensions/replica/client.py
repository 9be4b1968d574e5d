"""A buffer's second place on another machine, over HTTP. See `asyncrl.extensions.replica.replica`."""

from __future__ import annotations

import http.client
import json
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asyncrl.buffer.body_files import FileBody
from asyncrl.credentials import authorization
from asyncrl.data.codec import pack, unpack
from asyncrl.errors import ConflictError, UnavailableError
from asyncrl.extensions.replica.messages import PART_BYTES
from asyncrl.extensions.replica.replica import (
    BODIES,
    EPOCH,
    LEDGER,
    FolderPlace,
    Replica,
    facts_of,
    remove_ledger,
    restore,
)
from asyncrl.http_checks import MSGPACK
from asyncrl.services.http.client import error_named
from asyncrl.tls import client_context

log = logging.getLogger(__name__)

CALL_S = 10.0
"""The time limit of one attempt."""
RETRY_S = 10.0
"""How long a replica that does not answer is called again, as while it restarts. The buffer answers nobody then."""
PAUSE_S = 0.1


def follower_of(where: str, ledger: Path, token: str) -> Replica:
    """Return what keeps a second place of a ledger: a folder, or the replica service at an address, of which the ledger
    is made where it is missing or older. token: good for buffers. Raises `ConfigError`, `UnavailableError`."""
    if not where.startswith(("http://", "https://")):
        return Replica(FolderPlace(Path(where)))
    place = HttpPlace(where, token)
    place.bring_up(ledger)
    return Replica(place)


class HttpPlace:
    """Implements `Place` by the replica service at `url`, to which it attaches.

    token: good for buffers. Raises `UnavailableError` where it does not answer.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.fenced: Callable[[], None] = lambda: None
        """Called when another buffer has attached: this one must end."""
        parts = urlsplit(self.url)
        self._host, self._port, self._https = parts.hostname or "", parts.port, parts.scheme == "https"
        self._headers = {"Content-Type": MSGPACK, **authorization(token)}
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self.epoch = 0
        attached = self._call("attach")
        self.epoch, self._facts = int(attached["epoch"]), attached["facts"]

    def __str__(self) -> str:
        return self.url

    def facts(self) -> dict[str, int] | None:
        return self._facts

    def bring_up(self, ledger: Path) -> None:
        """Make the ledger of the replica, unless the one there is from the same writer or a later one. Raises
        `ConfigError`."""
        if self._facts is None:
            return
        if ledger.exists():
            ours = facts_of(ledger)
            if ours.get("identity") != self._facts["identity"] or ours.get(EPOCH, 0) >= self._facts.get(
                EPOCH, 0
            ):
                # `Replica.start` says what is wrong with another one's.
                return
            remove_ledger(ledger)
        log.warning("the ledger is brought up from the replica at %s", self.url)
        fetched = ledger.with_name("fetched")
        shutil.rmtree(fetched, ignore_errors=True)
        for folder in (generation := fetched / "generation-000001", bodies := fetched / BODIES):
            folder.mkdir(parents=True)
        for name, size in self._call("files")["files"].items():
            self._fetch(name, size, (generation if name.startswith(LEDGER) else bodies) / name)
        restore(fetched, ledger)
        shutil.rmtree(fetched)

    def _fetch(self, name: str, size: int, target: Path) -> None:
        with open(target, "wb") as file:
            while (offset := file.tell()) < size:
                part = {"name": name, "offset": offset, "size": min(PART_BYTES, size - offset)}
                data = self._call("read", **part)["data"]
                if not data:
                    raise UnavailableError(f"{self.url}: {name} has {offset} bytes instead of {size}")
                file.write(data)

    def copy_whole(self, db: sqlite3.Connection) -> None:
        path = Path(db.execute("PRAGMA database_list").fetchone()[2])
        temporary = path.with_name(f"{path.name}.whole")
        temporary.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(temporary)) as copy:
                db.backup(copy)
            with open(temporary, "rb") as file:
                while data := file.read(PART_BYTES):
                    self._call("copy", offset=file.tell() - len(data), data=data)
                size = file.tell()
        finally:
            temporary.unlink(missing_ok=True)
        self._call("adopt", size=size)

    def append(self, frames: bytes, offset: int) -> None:
        for start in range(0, len(frames), PART_BYTES):
            self._call("append", offset=offset + start, data=frames[start : start + PART_BYTES])

    def fold(self) -> None:
        self._call("fold")

    def write_body(self, number: int, body: bytes) -> None:
        with memoryview(body) as whole:
            for start in range(0, len(body), PART_BYTES):
                with whole[start : start + PART_BYTES] as piece:
                    self._call("body", number=number, offset=start, data=piece)

    def sweep_bodies(self, named: Sequence[FileBody]) -> list[int]:
        return self._call("bodies", bodies=[(one.file, one.size, one.checksum) for one in named])["missing"]

    def serving(self, url: str) -> None:
        """Have callers find the buffer there."""
        self._call("serving", url=url)

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _call(self, name: str, /, **fields: Any) -> Any:
        """Raises `UnavailableError`, also where the replica is another buffer's now."""
        body, give_up = pack({"epoch": self.epoch, **fields}), time.monotonic() + RETRY_S
        while True:
            try:
                return self._once(f"/v1/replica/{name}", body)
            except ConflictError as error:
                self.fenced()
                raise UnavailableError(f"{self.url}: {error}; this buffer ends") from error
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > give_up:
                    raise UnavailableError(
                        f"the replica at {self.url} does not answer: {type(error).__name__}: {error}; nothing is "
                        "acknowledged without it"
                    ) from error
                time.sleep(PAUSE_S)

    def _once(self, path: str, body: bytes) -> Any:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._connection()
        try:
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            raw = response.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        if response.status < 400:
            return unpack(raw)
        problem = json.loads(raw).get("error", {})
        raise error_named(problem.get("type"), problem.get("message", ""), response.status)

    def _connection(self) -> http.client.HTTPConnection:
        if self._https:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=CALL_S, context=client_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=CALL_S)
