"""A file of JSON lines that another process appends to: `metrics.jsonl`, `activity.jsonl`, `restarts.jsonl`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

_END_BYTES = 2**16


class JsonLines:
    """The records of a growing file; each call reads only what was added. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._returned = 0
        self._lock = threading.Lock()
        self.records: list[dict[str, Any]] = []

    def refresh(self) -> list[dict[str, Any]]:
        """Read what was appended; return all records. A file that has become shorter is read again from its start."""
        with self._lock:
            self._read()
            return list(self.records)

    def new(self) -> list[dict[str, Any]]:
        """Return the records that no earlier call of `new` returned."""
        with self._lock:
            self._read()
            found, self._returned = self.records[self._returned :], len(self.records)
            return found

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self._returned, self.records = 0, 0, []
                file.seek(self._offset)
                written = file.read()
        except OSError:
            return
        whole = written[: written.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.records += [record for line in whole.split(b"\n") if (record := _record(line)) is not None]


def last_record(path: Path) -> dict[str, Any] | None:
    """Return the newest whole record of a file, from its last 64 KiB; None where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _END_BYTES))
            written = file.read()
    except OSError:
        return None
    whole = written[: written.rfind(b"\n") + 1]
    return next(
        (record for line in reversed(whole.split(b"\n")) if (record := _record(line)) is not None), None
    )


def _record(line: bytes) -> dict[str, Any] | None:
    """Return a line's object; None for a line that a crash has torn."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
