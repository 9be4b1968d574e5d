"""A second place for the ledger, on another node: nothing is acknowledged before it is there.

SQLite appends every transaction to a write-ahead log. After each commit, and before its caller gets an answer, the
log's new frames are appended to a copy of the log in the second place and synced. When the log has grown long, both
places move it into their copy of the database, so these stay alike page for page. A place is a folder, on a disk that
is mounted here (`FolderPlace`) or of a replica service (`service`). It holds

    generation-N/             ledger.sqlite and ledger.sqlite-wal, as SQLite itself opens them after a crash
    bodies/                   the files of large bodies, written by `body_files`

A new generation, a whole copy, is made each time the ledger is opened. `restore` makes a ledger of the newest one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from asyncrl.buffer.body_files import BodyFiles, FileBody
from asyncrl.buffer.store import LEDGER
from asyncrl.disk import outage, sync
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.file_lock import own

BODIES = "bodies"
FOLDER = "ledger.replica"
"""In a run folder: the replica of a buffer on another machine, while the run is on."""
EPOCH = "replica_epoch"
"""The fact that tells which writer a ledger or a copy is from: a replica service gives each one a higher number."""
LONGEST_LOG_BYTES = 64 * 2**20
LOG_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
"""Sizes in SQLite's log, see https://sqlite.org/fileformat2.html#the_write_ahead_log."""


class Place(Protocol):
    """Where the second copy is. What changes it returns once that is on its disk, and raises `OSError`, `sqlite3.Error`
    or `AsyncRLError` where it is not; repeated, it changes nothing more. One thread calls all but `write_body`."""

    epoch: int
    """The writer's number, 0 where the place does not count them."""
    fenced: Callable[[], None]
    """Called when another buffer has taken the place: this one must end."""

    def __str__(self) -> str:
        """Where it is, for messages."""
        ...

    def facts(self) -> dict[str, int] | None:
        """Return the facts of the ledger that it has a copy of, None where it has none."""
        ...

    def copy_whole(self, db: sqlite3.Connection) -> None:
        """Make a copy of the whole ledger, with an empty log; it replaces the one before once it is complete."""
        ...

    def append(self, frames: bytes, offset: int) -> None:
        """Write frames to the copy of the log."""
        ...

    def fold(self) -> None:
        """Move the log into the copy of the database."""
        ...

    def write_body(self, number: int, body: bytes) -> None:
        """Write the file of a body. For any thread."""
        ...

    def sweep_bodies(self, named: Sequence[FileBody]) -> list[int]:
        """Remove all bodies but those that are named, and return those of them that are not there."""
        ...

    def serving(self, url: str) -> None:
        """Have callers find the buffer there, where they ask the place."""
        ...

    def close(self) -> None: ...


class FolderPlace:
    """Implements `Place` by a folder. Raises `ConfigError` for one that another buffer writes to."""

    epoch = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fenced: Callable[[], None] = lambda: None
        self._log = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder)
            self._bodies = BodyFiles(folder / BODIES)
        except OSError as error:
            raise ConfigError(f"buffer.replica: {folder}: {error.strerror}; it must be writable") from error
        if newest_generation(folder) is not None:
            self._open_log()

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def generation(self) -> Path:
        """The newest whole copy."""
        found = newest_generation(self.folder)
        assert found is not None
        return found

    def facts(self) -> dict[str, int] | None:
        found = newest_generation(self.folder)
        return None if found is None else facts_of(found / LEDGER)

    def copy_whole(self, db: sqlite3.Connection) -> None:
        with closing(sqlite3.connect(self.partial())) as copy:
            db.backup(copy)
        self.adopt()

    def partial(self) -> Path:
        """Return the file into which a whole copy is written, ahead of `adopt`; nothing is there yet."""
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        return partial / LEDGER

    def adopt(self) -> None:
        """Make what has been written to `partial` the newest generation; it counts once it has its name."""
        number = max((_number(one) for one in self.folder.glob("generation-*")), default=0) + 1
        generation, partial = self.folder / f"generation-{number:06d}", self.folder / "partial"
        with open(partial / LEDGER, "rb+") as file:
            os.fsync(file.fileno())
        sync(partial)
        partial.rename(generation)
        sync(self.folder)
        for earlier in self.folder.glob("generation-*"):
            if earlier != generation:
                shutil.rmtree(earlier)
        self._open_log(os.O_TRUNC)

    @property
    def log_bytes(self) -> int:
        """The length of the copy of the log, 0 without any."""
        return os.fstat(self._log).st_size if self._log >= 0 else 0

    def append(self, frames: bytes, offset: int) -> None:
        _write_at(self._log, frames, offset)
        os.fdatasync(self._log)

    def fold(self) -> None:
        self._close_log()
        with closing(opened(self.generation / LEDGER)) as copy:
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._open_log(os.O_TRUNC)

    def write_body(self, number: int, body: bytes, offset: int = 0) -> None:
        """See `Place`. offset: where these bytes belong in the file."""
        self._bodies.write_as(number, body, offset)

    def sweep_bodies(self, named: Sequence[FileBody]) -> list[int]:
        self._bodies.sweep(named)
        return [body.file for body in named if self._bodies.read(body) is None]

    def serving(self, url: str) -> None:
        """Nobody asks a folder where the buffer is."""

    def close(self) -> None:
        self._close_log()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _open_log(self, truncated: int = 0) -> None:
        self._close_log()
        generation = self.generation
        self._log = os.open(generation / f"{LEDGER}-wal", os.O_WRONLY | os.O_CREAT | truncated, 0o600)
        sync(generation)

    def _close_log(self) -> None:
        if self._log >= 0:
            os.close(self._log)
        self._log = -1


class Replica:
    """Implements `Follower`: keeps the second place of one ledger like it. `place` is closed with it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._log = -1

    @property
    def bodies(self) -> Place:
        """The place, which has the files of large bodies, too."""
        return self.place

    def serving(self, url: str) -> None:
        """See `Place`."""
        self.place.serving(url)

    def when_replaced(self, act: Callable[[], None]) -> None:
        """Have `act` called once another buffer has taken the place."""
        self.place.fenced = act

    def start(self, db: sqlite3.Connection, path: str) -> None:
        """Copy the ledger whole, and follow its log from now on.

        Raises `ConfigError` for the replica of another ledger, and for one that is ahead of this ledger.
        """
        self._db, self._page_bytes = db, db.execute("PRAGMA page_size").fetchone()[0]
        db.execute("PRAGMA wal_autocheckpoint=0")
        try:
            self._check_identity(db, path)
            if self.place.epoch:
                db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (EPOCH, self.place.epoch))
            self._empty_log()
            self.place.copy_whole(db)
            self._log, self._shipped = os.open(f"{path}-wal", os.O_RDONLY), 0
        except (OSError, sqlite3.Error) as error:
            raise self._refused(error) from error

    def ship(self) -> None:
        """Append what was committed to the copy. Raises `OutageError`, `UnavailableError` if the place refuses it."""
        try:
            if os.fstat(self._log).st_size <= self._shipped:
                return
            new = os.pread(self._log, os.fstat(self._log).st_size - self._shipped, self._shipped)
            new = new[: self._committed(new)]
            if not new:
                return
            self.place.append(new, self._shipped)
            self._shipped += len(new)
            if self._shipped > LONGEST_LOG_BYTES:
                self._fold()
        except (OSError, sqlite3.Error) as error:
            raise self._refused(error) from error

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
        self._log = -1
        self.place.close()

    def _committed(self, new: bytes) -> int:
        """Return the length of the log's new bytes up to the end of the last transaction that was committed.

        Behind it may be what a large transaction wrote before it was undone.
        """
        frame_bytes = FRAME_HEADER_BYTES + self._page_bytes
        at, end = (0 if self._shipped else LOG_HEADER_BYTES), 0
        while at + frame_bytes <= len(new):
            _, pages_after_commit = struct.unpack_from(">II", new, at)
            at += frame_bytes
            if pages_after_commit:
                end = at
        return end

    def _fold(self) -> None:
        """Move the log into the database, in the copy first: what it has must never be behind its log's beginning."""
        self.place.fold()
        self._empty_log()
        self._shipped = 0

    def _empty_log(self) -> None:
        busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise sqlite3.OperationalError("the ledger's log is in use")

    def _check_identity(self, db: sqlite3.Connection, path: str) -> None:
        db.execute("INSERT OR IGNORE INTO facts VALUES ('identity', ?)", (secrets.randbits(62),))
        theirs, ours = self.place.facts(), _facts(db)
        if theirs is None:
            return
        if theirs["identity"] != ours["identity"]:
            raise ConfigError(
                f"buffer.replica: {self.place} is the replica of another ledger; give {path} an empty folder"
            )
        if (theirs["version"], theirs["leases"]) > (ours["version"], ours["leases"]):
            raise ConfigError(
                f"buffer.replica: {self.place} is ahead of {path}, which has lost something; move {path} away and "
                f"run: asyncrl restore {self.place} {Path(path).parent}"
            )

    def _refused(self, error: Exception) -> UnavailableError:
        kind = outage(error) or UnavailableError
        return kind(f"buffer.replica {self.place}: {error}; nothing is acknowledged without it")


def newest_generation(folder: Path) -> Path | None:
    """Return the newest whole copy in a replica's folder."""
    return max(folder.glob("generation-*"), key=_number, default=None)


def restore(folder: Path, ledger: Path) -> dict[str, Any]:
    """Make a ledger of a replica; return how many tasks it has by state, its bodies, and how many of them are lost.

    Raises `ConfigError` where there is no replica, where a buffer still writes to it, or where `ledger` exists.
    """
    found = newest_generation(folder)
    if found is None:
        raise ConfigError(f"{folder}: holds no replica of a ledger")
    if ledger.exists():
        raise ConfigError(f"{ledger}: exists; move it away, or restore into another folder")
    lock = _locked(folder)
    try:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        bodies = ledger.with_suffix(".bodies")
        shutil.rmtree(bodies, ignore_errors=True)
        if (folder / BODIES).is_dir():
            shutil.copytree(folder / BODIES, bodies)
        partial = ledger.with_name(ledger.name + ".partial")
        for suffix in ("", "-wal"):
            source = found / f"{LEDGER}{suffix}"
            if source.exists():
                shutil.copyfile(source, f"{partial}{suffix}")
        with closing(opened(partial)) as db:
            # Moves the log into the file.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            problem = db.execute("PRAGMA quick_check").fetchone()[0]
            if problem != "ok":
                raise ConfigError(f"{found}: is damaged: {problem}")
            states = dict(db.execute("SELECT state, SUM(tasks) FROM counts GROUP BY state"))
            named = _named(db)
        partial.rename(ledger)
    finally:
        os.close(lock)
    files = BodyFiles(bodies)
    lost = sum(files.read(body) is None for body in named)
    return {"tasks": states, "bodies": len(named), "lost": lost}


def seed(ledger: Path, folder: Path) -> None:
    """Make a folder the replica of a ledger that nobody has open. Raises `ConfigError`, `UnavailableError`."""
    place = FolderPlace(folder)
    try:
        with closing(opened(ledger)) as db:
            place.copy_whole(db)
            named = _named(db)
        files = BodyFiles(ledger.with_suffix(".bodies"))
        for body in named:
            found = files.read(body)
            if found is not None:
                place.write_body(body.file, found)
    finally:
        place.close()


def settle(folder: Path, ledger: Path) -> None:
    """Make a replica the ledger itself, in place of an older one there, and remove the replica. Repeated after a crash
    it does the rest. Raises `ConfigError`."""
    if newest_generation(folder) is not None:
        remove_ledger(ledger)
        restore(folder, ledger)
    shutil.rmtree(folder, ignore_errors=True)


def remove_ledger(ledger: Path) -> None:
    """Remove a ledger; its bodies are those of whatever comes in its place."""
    for suffix in ("", "-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)


def facts_of(ledger: Path) -> dict[str, int]:
    """Return the facts of a ledger that nobody has open."""
    with closing(opened(ledger)) as db:
        return _facts(db)


def _named(db: sqlite3.Connection) -> list[FileBody]:
    """Return the bodies in files that a ledger names."""
    rows = db.execute("SELECT file, size, checksum FROM bodies WHERE file IS NOT NULL")
    return [FileBody(*row) for row in rows]


def _facts(db: sqlite3.Connection) -> dict[str, int]:
    return dict(db.execute("SELECT name, value FROM facts"))


def opened(path: Path) -> sqlite3.Connection:
    """A connection that needs no shared memory, which network file systems lack."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    return db


def _locked(folder: Path) -> int:
    return own(folder / "lock", f"{folder}: a buffer replicates to it; stop that one first")


def _number(generation: Path) -> int:
    return int(generation.name.rpartition("-")[2])


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
