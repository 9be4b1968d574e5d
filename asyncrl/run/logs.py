"""The logs of a run's processes: their ends, and what is added to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from asyncrl.errors import ConfigError, InputError

MAX_LOG_BYTES = 2**18
"""How much of a log's end a page shows."""
_BLOCK_BYTES = 2**16


def log_names(folder: Path) -> list[str]:
    """Return the processes of a run that have a log, sorted. A link is none: it would show a file of elsewhere."""
    logs = folder / "logs"
    if logs.is_symlink():
        return []
    return sorted(path.stem for path in logs.glob("*.log") if path.is_file() and not path.is_symlink())


def read_log(folder: Path, name: str) -> str:
    """Return the end of a process's log. Raises `InputError` for a name that no log has."""
    if name not in log_names(folder):
        raise InputError(f"no log {name[:64]!r}")
    with _opened(_path(folder, name)) as file:
        file.seek(max(0, file.seek(0, 2) - MAX_LOG_BYTES))
        return file.read().decode(errors="replace")


class LogTails:
    """The logs of all processes of a run, of one, or of one role. Processes that start later are followed, too."""

    def __init__(self, folder: Path, role: str = "") -> None:
        """role: a process such as "engine-0", or a role such as "engine"; "" for all. Raises `ConfigError`."""
        self._folder, self._role = folder, role
        self._offsets: dict[str, int] = {}
        """By process, up to where its log has been returned, in bytes."""
        if not self._names():
            known = ", ".join(log_names(folder)) or "none yet"
            raise ConfigError(f"{folder}: has no log of {role or 'any process'}; there are {known}")

    def ends(self, lines: int) -> Iterator[tuple[str, str]]:
        """Yield each process with the last lines of its log; 0 stands for all of them."""
        for name in self._names():
            path = _path(self._folder, name)
            self._offsets[name] = _start_of_last(path, lines) if lines else 0
        yield from self._read()

    def added(self, whole_lines: bool = True) -> Iterator[tuple[str, str]]:
        """Yield each process with what was added since the last call, up to its last whole line if asked so."""
        yield from self._read(whole_lines)

    def _names(self) -> list[str]:
        return [name for name in log_names(self._folder) if self._role in ("", name, name.rpartition("-")[0])]

    def _read(self, whole_lines: bool = False) -> Iterator[tuple[str, str]]:
        for name in self._names():
            with _opened(_path(self._folder, name)) as file:
                file.seek(self._offsets.get(name, 0))
                found = file.read()
            if whole_lines:
                found = found[: found.rfind(b"\n") + 1]
            if found:
                self._offsets[name] = self._offsets.get(name, 0) + len(found)
                yield name, found.decode(errors="replace")


def _start_of_last(path: Path, lines: int) -> int:
    """Return where the last lines of a file begin, in bytes; a last line without its end counts."""
    with _opened(path) as file:
        start, tail = file.seek(0, 2), b""
        while start > 0 and tail.rstrip(b"\n").count(b"\n") < lines:
            size = min(_BLOCK_BYTES, start)
            start -= size
            file.seek(start)
            tail = file.read(size) + tail
    kept = tail.splitlines(keepends=True)[-lines:]
    return start + len(tail) - sum(map(len, kept))


def _opened(path: Path) -> IO[bytes]:
    """Open a log for reading; one that has become a link meanwhile raises `OSError`."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def _path(folder: Path, name: str) -> Path:
    return folder / "logs" / f"{name}.log"
