"""The steps of a run as columns, read as they are appended."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class JsonLines:
    """The records of a file of JSON lines that grows; each call reads only what was added. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lock = threading.Lock()
        self.records: list[dict[str, Any]] = []

    def refresh(self) -> list[dict[str, Any]]:
        """Read what was appended; return all records. A file that has become shorter is read again from its start."""
        with self._lock:
            self._read()
            return list(self.records)

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self.records = 0, []
                file.seek(self._offset)
                written = file.read()
        except OSError:
            return
        whole = written[: written.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # torn by a crash
            if isinstance(record, dict):
                self.records.append(record)


class StepColumns:
    """The numbers of a run's metrics.jsonl by name."""

    def __init__(self, folder: Path, lines: JsonLines | None = None) -> None:
        """lines: those of the folder's metrics, where somebody reads them already."""
        self._lines = lines or JsonLines(folder / "metrics.jsonl")

    def names(self) -> list[str]:
        """Return the metrics that any step has as a number, sorted."""
        return sorted(
            {name for record in self._steps() for name, value in record.items() if _is_number(value)}
        )

    def columns(self, names: Sequence[str], after: int = -1) -> dict[str, list[Any]]:
        """Return the columns `step` and `names` of the steps above `after`; None where a step has no such number.

        A step that was repeated after a crash counts as it was trained last.
        """
        steps = [record for record in self._steps() if record["step"] > after]
        return {
            name: [record.get(name) if _is_number(record.get(name)) else None for record in steps]
            for name in dict.fromkeys(("step", *names))
        }

    def _steps(self) -> list[dict[str, Any]]:
        latest = {record["step"]: record for record in self._lines.refresh() if "step" in record}
        return [latest[step] for step in sorted(latest)]


def _is_number(value: Any) -> bool:
    # JSON has no NaN, and a chart has nowhere to draw one.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
