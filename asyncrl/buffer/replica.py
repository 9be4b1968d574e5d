"""A second place for the ledger, on another node's disk: nothing is acknowledged before it is there.

SQLite appends every transaction to a write-ahead log. After each commit, and before its caller gets an answer, the
log's new frames are appended to a copy of the log in the replica's folder and synced. When the log has grown long, both
places move it into their copy of the database, so these stay alike page for page. The folder holds

    generation-N/             ledger.sqlite and ledger.sqlite-wal, as SQLite itself opens them after a crash
    bodies/                   the files of large bodies, written by `body_files`

A new generation, a whole copy, is made each time the ledger is opened. `restore` makes a ledger of the newest one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from asyncrl.buffer.body_files import BodyFiles, FileBody, sync_folder
from asyncrl.disk import disk_problem
from asyncrl.errors import ConfigError, StorageError, UnavailableError

LEDGER = "ledger.sqlite"
BODIES = "bodies"
LONGEST_LOG_BYTES = 64 * 2**20
LOG_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
"""Of SQLite's log, see https://sqlite.org/fileformat2.html#the_write_ahead_log."""


class Replica:
    """The second place of one ledger. Raises `ConfigError` for a folder that another buffer writes to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: list[int] = []
        """What `close` closes."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open.append(_locked(folder))
        except OSError as error:
            raise ConfigError(f"buffer.replica: {folder}: {error.strerror}; it must be writable") from error

    @property
    def bodies(self) -> Path:
        return self.folder / BODIES

    def start(self, db: sqlite3.Connection, path: str) -> None:
        """Copy the ledger whole, and follow its log from now on.

        Raises `ConfigError` for the replica of another ledger, and for one that is ahead of this ledger.
        """
        self._db, self._page_bytes = db, db.execute("PRAGMA page_size").fetchone()[0]
        db.execute("PRAGMA wal_autocheckpoint=0")
        self._check_identity(db, path)
        try:
            self._empty_log()
            self._copy_whole()
            self._log = os.open(f"{path}-wal", os.O_RDONLY)
            self._open.append(self._log)
            self._open_copy()
        except (OSError, sqlite3.Error) as error:
            raise self._refused(error) from error

    def ship(self) -> None:
        """Append what was committed to the copy. Raises `StorageError`, `UnavailableError` if the folder refuses it."""
        try:
            if os.fstat(self._log).st_size <= self._shipped:
                return
            new = os.pread(self._log, os.fstat(self._log).st_size - self._shipped, self._shipped)
            new = new[: self._committed(new)]
            if not new:
                return
            _write_at(self._copy, new, self._shipped)
            os.fdatasync(self._copy)
            self._shipped += len(new)
            if self._shipped > LONGEST_LOG_BYTES:
                self._fold()
        except (OSError, sqlite3.Error) as error:
            raise self._refused(error) from error

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

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
        self._open.remove(self._copy)
        os.close(self._copy)
        with closing(_opened(self._generation / LEDGER)) as copy:
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._empty_log()
        self._open_copy()

    def _empty_log(self) -> None:
        busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise sqlite3.OperationalError("the ledger's log is in use")

    def _open_copy(self) -> None:
        log = self._generation / f"{LEDGER}-wal"
        self._copy, self._shipped = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 0
        self._open.append(self._copy)
        sync_folder(self._generation)

    def _copy_whole(self) -> None:
        """Make a new generation; it counts once it has its name."""
        number = max((_number(one) for one in self.folder.glob("generation-*")), default=0) + 1
        self._generation = self.folder / f"generation-{number:06d}"
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        with closing(sqlite3.connect(partial / LEDGER)) as copy:
            self._db.backup(copy)
        sync_folder(partial)
        partial.rename(self._generation)
        sync_folder(self.folder)
        for earlier in self.folder.glob("generation-*"):
            if earlier != self._generation:
                shutil.rmtree(earlier)

    def _check_identity(self, db: sqlite3.Connection, path: str) -> None:
        db.execute("INSERT OR IGNORE INTO facts VALUES ('identity', ?)", (secrets.randbits(62),))
        found = newest_generation(self.folder)
        if found is None:
            return
        with closing(_opened(found / LEDGER)) as copy:
            theirs, ours = (_facts(one) for one in (copy, db))
        if theirs["identity"] != ours["identity"]:
            raise ConfigError(
                f"buffer.replica: {self.folder} is the replica of another ledger; give {path} an empty folder"
            )
        if (theirs["version"], theirs["leases"]) > (ours["version"], ours["leases"]):
            raise ConfigError(
                f"buffer.replica: {self.folder} is ahead of {path}, which has lost something; move {path} away and "
                f"run: asyncrl restore {self.folder} {Path(path).parent}"
            )

    def _refused(self, error: Exception) -> UnavailableError:
        full = disk_problem(error) or (
            isinstance(error, sqlite3.Error) and "full" in str(error) and str(error)
        )
        kind = StorageError if full else UnavailableError
        return kind(f"buffer.replica {self.folder}: {error}; nothing is acknowledged without it")


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
        with closing(_opened(partial)) as db:
            # Moves the log into the file.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            problem = db.execute("PRAGMA quick_check").fetchone()[0]
            if problem != "ok":
                raise ConfigError(f"{found}: is damaged: {problem}")
            states = dict(db.execute("SELECT state, SUM(tasks) FROM counts GROUP BY state"))
            named = db.execute("SELECT file, size, checksum FROM bodies WHERE file IS NOT NULL").fetchall()
        partial.rename(ledger)
    finally:
        os.close(lock)
    files = BodyFiles(bodies)
    lost = sum(files.read(FileBody(*row)) is None for row in named)
    return {"tasks": states, "bodies": len(named), "lost": lost}


def _facts(db: sqlite3.Connection) -> dict[str, int]:
    return dict(db.execute("SELECT name, value FROM facts"))


def _opened(path: Path) -> sqlite3.Connection:
    """A connection that needs no shared memory, which network file systems lack."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode=EXCLUSIVE")
    return db


def _locked(folder: Path) -> int:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"{folder}: a buffer replicates to it; stop that one first") from None
    return lock


def _number(generation: Path) -> int:
    return int(generation.name.rpartition("-")[2])


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
