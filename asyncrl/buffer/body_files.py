"""Files for large bodies of groups, beside the ledger. No SQLite here.

A body is on the disk before the row that names it is committed, and its file is free again once that row is gone. A
free file is overwritten by a later body: writing blocks that the file system has allocated already is several times as
fast as writing new ones (see `docs/benchmarks.md`). Its checksum tells a body from what a loss of power left of two.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from asyncrl.disk import disk_problem, sync
from asyncrl.errors import StorageError, UnavailableError

LARGE_BYTES = 256 * 1024
"""Bodies of this size and more have a file; SQLite is faster for smaller ones."""
SUFFIX = ".body"


@dataclass(slots=True)
class FileBody:
    """A body in a file: the number of the file, its bytes, and their CRC-32."""

    file: int
    size: int
    checksum: int
    kept: bool = False
    """Whether a row named it, be it in a transaction that was undone later."""


class BodyCopy(Protocol):
    """A second place for the files, see `replica.Place`."""

    def write_body(self, number: int, body: bytes) -> None: ...

    def sweep_bodies(self, named: Sequence[FileBody]) -> list[int]: ...


class BodyFiles:
    """The files of one ledger in `folder`. `write`, `read` and `free` may be called in any thread.

    copy: holds the same files, each written there, too, before `write` returns.
    """

    def __init__(self, folder: Path, copy: BodyCopy | None = None) -> None:
        self.folder, self.copy = folder, copy
        self._free: list[int] = []
        self._next = 0
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def sweep(self, named: Sequence[FileBody]) -> None:
        """Remove all files but those that are `named`: their rows were never committed, or are gone.

        The copy gets what it lacks.
        """
        missing = set(self.copy.sweep_bodies(named)) if self.copy is not None else set()
        for body in named:
            if self.copy is not None and body.file in missing and (found := self.read(body)) is not None:
                self.copy.write_body(body.file, found)
        kept = {body.file for body in named}
        for path in self.folder.glob(f"*{SUFFIX}"):
            if not path.stem.isdigit() or int(path.stem) not in kept:
                path.unlink(missing_ok=True)
        self._free, self._next = [], max(kept, default=-1) + 1

    def write(self, body: bytes) -> FileBody:
        """Write a body to the disk. Raises `StorageError` or `UnavailableError` when a folder does not take it."""
        with self._lock:
            new = not self._free
            number = self._next if new else self._free.pop()
            self._next += new
        try:
            self.write_as(number, body)
            if self.copy is not None:
                self.copy.write_body(number, body)
        except OSError as error:
            self.free([number])
            kind = StorageError if disk_problem(error) else UnavailableError
            raise kind(
                f"group body {error.filename or self.folder}: {error.strerror}; nothing was changed"
            ) from error
        except UnavailableError:
            self.free([number])
            raise
        return FileBody(number, len(body), zlib.crc32(body))

    def write_as(self, number: int, body: bytes) -> None:
        """Write the file with this number. Raises `OSError`."""
        _write(self._path(number), body)

    def read(self, body: FileBody) -> bytes | None:
        """Return the bytes; None where the file does not hold them, as after a loss of power."""
        try:
            with open(self._path(body.file), "rb", buffering=0) as file:
                found = file.read(body.size)
        except FileNotFoundError:
            return None
        return found if zlib.crc32(found) == body.checksum and len(found) == body.size else None

    def free(self, numbers: Iterable[int]) -> None:
        """Let later bodies have the files of these."""
        with self._lock:
            self._free += numbers

    def remove_free(self) -> None:
        """Remove the files that hold nothing."""
        with self._lock:
            for number in self._free:
                self._path(number).unlink(missing_ok=True)
            self._free = []

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}{SUFFIX}"


def _write(path: Path, body: bytes) -> None:
    """Overwrite the file's beginning; what a longer body left behind the end stays. Raises `OSError`."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fdatasync(descriptor)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(descriptor)
    if new:
        sync(path.parent)
