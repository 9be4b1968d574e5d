"""Files for large bodies of groups, beside the ledger. No SQLite here.

A body is on the disk before the row that names it is committed, and its file is free again once that row is gone. A
free file is overwritten by a later body: writing blocks that the file system has allocated already is several times as
fast as writing new ones (see `docs/benchmarks.md`). Its checksum tells a body from what a loss of power left of two.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash

from asyncrl.disk import outage, sync, write_at
from asyncrl.errors import UnavailableError

LARGE_BYTES = 256 * 1024
"""Bodies of this size and more have a file; SQLite is faster for smaller ones."""
MAX_GROUP_BYTES = 2 * 10**9
"""The most of one body, and of several in one call: about what one read of a file returns. 16 episodes of 64k tokens
with their experts have 0.42e9 bytes, those with pictures as many as their pictures."""
SUFFIX = ".body"
ABOVE_CRC = 2**62
"""Lowest checksum that is not a CRC-32, which earlier versions wrote."""
FIRST_RESERVED = 2**60
"""The lowest number of a file that another process writes."""
MAX_RESERVED = 4096
RESERVED_S = 300.0
"""Longer than a put may take."""
PROOF = "proof"
"""Name of a file that shows another process that it sees this folder, and no other."""


@dataclass(slots=True)
class FileBody:
    """A body in a file: the number of the file, its bytes, and their `checksum_of`."""

    file: int
    size: int
    checksum: int
    kept: bool = False
    """Whether a row named it, be it in a transaction that was undone later."""


class BodyCopy(Protocol):
    """A second place for the files."""

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
        self._free_reserved: list[int] = []
        self._next_reserved = FIRST_RESERVED
        self._reserved: dict[int, tuple[str, float]] = {}
        """Files that others write: for whom, and since when, in monotonic seconds."""
        self._unlisted: set[int] = set()
        """Those of `_reserved` whose entry in the folder is not on the disk yet."""
        self._proof = ""
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
        self._free, self._free_reserved = [], []
        self._next = max((number for number in kept if number < FIRST_RESERVED), default=-1) + 1
        # Who had reserved a file of an earlier process may write it still: no other body may get that number.
        self._next_reserved = FIRST_RESERVED + secrets.randbelow(FIRST_RESERVED)

    def write(self, body: bytes, claimed: int | None = None) -> FileBody:
        """Write a body to the disk. claimed: the file that holds it already, see `claim`.

        Raises `OutageError` or `UnavailableError` when a folder does not take it.
        """
        with self._lock:
            if claimed is not None:
                number = claimed
            elif self._free:
                number = self._free.pop()
            else:
                number, self._next = self._next, self._next + 1
        try:
            if claimed is None:
                self.write_as(number, body)
            if self.copy is not None:
                self.copy.write_body(number, body)
        except OSError as error:
            self.free([number])
            raise _explained(error, self.folder) from error
        except UnavailableError:
            self.free([number])
            raise
        return FileBody(number, len(body), checksum_of(body))

    def reserve(self, holder: str, count: int) -> list[int]:
        """Return the numbers of files that `holder` may write (`write_reserved`) and then have claimed, fewer than
        `count` or none where many are reserved already."""
        with self._lock:
            numbers = []
            for _ in range(min(count, MAX_RESERVED - len(self._reserved))):
                if self._free_reserved:
                    number = self._free_reserved.pop()
                else:
                    number, self._next_reserved = self._next_reserved, self._next_reserved + 1
                    self._unlisted.add(number)
                self._reserved[number] = (holder, time.monotonic())
                numbers.append(number)
            return numbers

    def claim(self, holder: str, number: int, size: int) -> bytes | None:
        """Return what `holder` has written to a file that it had reserved, once the disk has it; None when it has no
        such file. The file is the caller's from now on, to `write` or `free`. Raises as `write` does."""
        with self._lock:
            if self._reserved.get(number, ("",))[0] != holder:
                return None
            del self._reserved[number]
            new = number in self._unlisted
        try:
            found = _synced(self._path(number), size)
            if new:
                sync(self.folder)
                self._unlisted.discard(number)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.free([number])
            raise _explained(error, self.folder) from error
        if len(found) == size:
            return found
        self.free([number])
        return None

    def expire_reserved(self) -> int:
        """Forget what was reserved `RESERVED_S` ago; return how many. Their writers may be late only: nobody else
        gets these files."""
        oldest = time.monotonic() - RESERVED_S
        with self._lock:
            old = [number for number, (_, since) in self._reserved.items() if since < oldest]
            for number in old:
                del self._reserved[number]
                self._unlisted.discard(number)
                self._path(number).unlink(missing_ok=True)
        return len(old)

    def write_as(self, number: int, body: bytes, offset: int = 0) -> None:
        """Write the file with this number, from the byte `offset` on. Raises `OSError`."""
        _write(self._path(number), body, offset)

    def read(self, body: FileBody) -> bytes | None:
        """Return the bytes; None where the file does not hold them, as after a loss of power."""
        return read_body(self.folder, body)

    def prove(self) -> str:
        """Write a file that `same_folder` knows this folder by, once; return what is in it."""
        if not self._proof:
            self._proof = secrets.token_hex(16)
            descriptor = os.open(self.folder / PROOF, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w") as file:
                file.write(self._proof)
        return self._proof

    def free(self, numbers: Iterable[int]) -> None:
        """Let later bodies have the files of these."""
        with self._lock:
            for number in numbers:
                (self._free if number < FIRST_RESERVED else self._free_reserved).append(number)

    def remove_free(self) -> None:
        """Remove the files that hold nothing."""
        with self._lock:
            for number in [*self._free, *self._free_reserved]:
                self._path(number).unlink(missing_ok=True)
            self._free, self._free_reserved = [], []
            (self.folder / PROOF).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return body_path(self.folder, number)


def body_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{SUFFIX}"


def read_body(folder: Path, body: FileBody) -> bytes | None:
    """Return the bytes of a body; None where its file does not hold them, or is not there."""
    try:
        with open(body_path(folder, body.file), "rb", buffering=0) as file:
            found = file.read(body.size)
    except FileNotFoundError:
        return None
    expected = zlib.crc32(found) if body.checksum < ABOVE_CRC else checksum_of(found)
    return found if expected == body.checksum and len(found) == body.size else None


def checksum_of(body: bytes) -> int:
    """Return 62 bits of XXH3, a fifth of the work of a CRC-32, and `ABOVE_CRC`."""
    return ABOVE_CRC | xxhash.xxh3_64_intdigest(body) >> 2


def write_reserved(folder: Path, number: int, body: bytes) -> None:
    """Write a file that `BodyFiles.reserve` has reserved; not to the disk, which is for who claims it. Raises
    `OSError`."""
    descriptor = os.open(body_path(folder, number), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        write_at(descriptor, body)
        # Starts the writing to the disk, so that the claim waits for less of it.
        os.posix_fadvise(descriptor, 0, len(body), os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def same_folder(folder: Path, proof: str) -> bool:
    """True when the folder of this name is here, too, and is the one for which `BodyFiles.prove` returned `proof`."""
    try:
        return (folder / PROOF).read_text() == proof
    except (OSError, ValueError):
        return False


def _write(path: Path, body: bytes, offset: int = 0) -> None:
    """Overwrite a part of the file; what a longer body left behind the end stays. Raises `OSError`."""
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        write_at(descriptor, body, offset)
        os.fdatasync(descriptor)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        os.close(descriptor)
    if new:
        sync(path.parent)


def _synced(path: Path, size: int) -> bytes:
    """Return the beginning of a file that another process has written, and have it on the disk. Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        os.fdatasync(file.fileno())
        return file.read(size)


def _explained(error: OSError, folder: Path) -> UnavailableError:
    kind = outage(error) or UnavailableError
    return kind(f"group body {error.filename or folder}: {error.strerror}; nothing was changed")
