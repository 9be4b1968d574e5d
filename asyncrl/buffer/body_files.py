"""Files for large bodies of groups, beside the ledger. No SQLite here.

A body is on the disk before the row that names it is committed, and its file is free again once that row is gone. A
free file is overwritten by a later body: writing blocks that the file system has allocated already is several times as
fast as writing new ones (see `docs/benchmarks.md`). Its checksum tells a body from what a loss of power left of two.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from asyncrl.disk import disk_problem
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


class BodyFiles:
    """The files of one ledger in `folder`. `write`, `read` and `free` may be called in any thread.

    copies: further folders that hold the same files, each written before `write` returns.
    """

    def __init__(self, folder: Path, copies: tuple[Path, ...] = ()) -> None:
        self.folders = (folder, *copies)
        self._free: list[int] = []
        self._next = 0
        self._lock = threading.Lock()
        for one in self.folders:
            one.mkdir(parents=True, exist_ok=True)

    def sweep(self, named: Collection[FileBody]) -> None:
        """Remove all files but those that are `named`: their rows were never committed, or are gone.

        The copies get what they lack.
        """
        kept = {body.file for body in named}
        for body in named if len(self.folders) > 1 else ():
            found = self.read(body)
            for folder in self.folders[1:]:
                if found is not None and self._read(folder, body) is None:
                    _write(self._path(folder, body.file), found)
        for folder in self.folders:
            for path in folder.glob(f"*{SUFFIX}"):
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
            for folder in self.folders:
                _write(self._path(folder, number), body)
        except OSError as error:
            self.free([number])
            kind = StorageError if disk_problem(error) else UnavailableError
            raise kind(
                f"group body {error.filename or self.folders[0]}: {error.strerror}; nothing was changed"
            ) from error
        return FileBody(number, len(body), zlib.crc32(body))

    def read(self, body: FileBody) -> bytes | None:
        """Return the bytes; None where the file does not hold them, as after a loss of power."""
        return self._read(self.folders[0], body)

    def _read(self, folder: Path, body: FileBody) -> bytes | None:
        try:
            with open(self._path(folder, body.file), "rb", buffering=0) as file:
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
                for folder in self.folders:
                    self._path(folder, number).unlink(missing_ok=True)
            self._free = []

    def _path(self, folder: Path, number: int) -> Path:
        return folder / f"{number:08d}{SUFFIX}"


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
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
