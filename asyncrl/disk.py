"""Disks that cannot be written: full, read-only or over quota. Told apart because a restart does not help. What else of
the machine a process stands on may fail. And what puts written files on disks.

What a process ran out of, a disk or something else, is its exit code, too: its log may be on the disk that is full, and
say nothing of it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import AsyncRLError, OutageError, StorageError

ERRNOS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT})
FAILING = frozenset({errno.EIO, errno.ESTALE, errno.EREMOTEIO})
"""A disk, or the server of one, that answers with an error."""
DATABASE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY})
DATABASE_FAILS = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Primary result codes of SQLite."""
FAULTS = (OSError, MemoryError, sqlite3.Error)
"""What an outage of the machine is raised as; most of the first and last kind are none."""
PROBE_BYTES = 2**20
_NUMBER = re.compile(r"\bos error (\d+)\)")
"""How Rust libraries (safetensors, tokenizers) format a system error."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """One thing that can run out. code: the exit code of a process that died of it."""

    code: int
    cause: str
    pattern: re.Pattern[str]
    """What an error in a log says that names it."""


DISK = Exhausted(
    4,
    "a disk that it writes to is full, read-only or over quota (ENOSPC, EROFS, EDQUOT)",
    re.compile(
        r"No space left|Read-only file system|quota exceeded|disk is full|Errno (?:28|30|122)\b",
        re.IGNORECASE,
    ),
)
FILES = Exhausted(
    5,
    "too many files are open (EMFILE, ENFILE); raise ulimit -n",
    re.compile(r"Too many open files|too many files are open|Errno 2[34]\b", re.IGNORECASE),
)
MEMORY = Exhausted(
    6,
    "out of memory (ENOMEM)",
    re.compile(r"MemoryError|out of memory|cannot allocate memory|Errno 12\b", re.IGNORECASE),
)
FILE_SIZE = Exhausted(
    7,
    "a file may not grow as far as it would have (EFBIG); raise ulimit -f",
    re.compile(r"File too large|Errno 27\b", re.IGNORECASE),
)
_BY_ERRNO = {
    errno.EMFILE: FILES,
    errno.ENFILE: FILES,
    errno.ENOMEM: MEMORY,
    errno.EFBIG: FILE_SIZE,
}
BY_CODE = {one.code: one for one in (DISK, FILES, MEMORY, FILE_SIZE)}


def disk_problem(error: BaseException) -> str:
    """Return why a disk refused a write, read from the error, its causes or its group's members; "" if none did."""
    for one in related(error):
        number = one.errno if isinstance(one, OSError) else None
        if number is None and (found := _NUMBER.search(str(one))):
            number = int(found[1])
        if number in ERRNOS or isinstance(one, StorageError):
            return str(one)
    return ""


def unwritable(folder: Path) -> str:
    """Write and remove a small file in `folder`; return why the disk refused it, "" if it did not."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return disk_problem(error) and f"{folder}: {error.strerror}"
    return ""


def related(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes and the members of its group."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        with contextlib.suppress(AttributeError):
            waiting += one.exceptions  # type: ignore[attr-defined]


def write_at(descriptor: int, content: bytes | memoryview, offset: int = 0) -> None:
    """Write all of it, from a byte of the file on. Raises `OSError`."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def sync(path: Path) -> None:
    """Have the content of a file, or the names in a folder, on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exhausted(error: BaseException) -> Exhausted | None:
    """Return what an error, one of its causes or a member of its group says has run out; None if none does."""
    if disk_problem(error):
        return DISK
    for one in related(error):
        if isinstance(one, MemoryError):
            return MEMORY
        if isinstance(one, OSError) and one.errno in _BY_ERRNO:
            return _BY_ERRNO[one.errno]
    return None


def outage(error: BaseException, folder: Path | None = None) -> type[OutageError] | None:
    """Return as what a caller is told of an error that is this machine's and not the request's; None for all others.

    folder: of the database that the error is about: over a quota, and on a disk that has become read-only, SQLite
    reports no more than an I/O error.
    """
    if isinstance(error, AsyncRLError):
        return type(error) if isinstance(error, OutageError) else None
    full, fails = bool(disk_problem(error)), exhausted(error) is not None
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        full = code in DATABASE_FULL or (
            code == sqlite3.SQLITE_IOERR and folder is not None and bool(unwritable(folder))
        )
        fails = code in DATABASE_FAILS
    elif isinstance(error, OSError):
        fails = fails or error.errno in FAILING
    return StorageError if full else OutageError if fails else None


def as_told(error: Exception) -> AsyncRLError:
    """Return the error that a caller is told: the error itself, or the `OutageError` that it is. Raises it where it is
    neither: a bug."""
    if isinstance(error, AsyncRLError):
        return error
    kind = outage(error)
    if kind is None:
        raise error
    return kind(f"{type(error).__name__}: {error}")


def cause_of(code: int, error: str) -> str:
    """Return why a process died: the error in its log, unless its exit code says what that could not be written for."""
    known = BY_CODE.get(code)
    return error if known is None or known.pattern.search(error) else known.cause
