"""Disks that cannot be written: full, read-only or over quota. Told apart because a restart does not help. And
what puts written files on them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from asyncrl.errors import StorageError

ERRNOS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT})
PROBE_BYTES = 2**20
_NUMBER = re.compile(r"\bos error (\d+)\)")
"""How Rust libraries (safetensors, tokenizers) format a system error."""


def disk_problem(error: BaseException) -> str:
    """Return why a disk refused a write, read from the error, its causes or its group's members; "" if none did."""
    for one in _related(error):
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


def _related(error: BaseException) -> Iterator[BaseException]:
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


def sync(path: Path) -> None:
    """Have the content of a file, or the names in a folder, on the disk. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
