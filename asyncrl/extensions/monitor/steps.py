"""The steps of a run as columns, read as they are appended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.run.json_lines import JsonLines
from asyncrl.run.metrics import latest_steps


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
        return latest_steps(self._lines.refresh())


def _is_number(value: Any) -> bool:
    # JSON has no NaN, and a chart has nowhere to draw one.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
