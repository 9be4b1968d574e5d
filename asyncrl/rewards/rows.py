"""How errors name a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IDS = ("id", "row_id", "task_id", "unique_id", "question_id", "uid", "index", "ID")


def describe_row(row: Mapping[str, Any]) -> str:
    """Return the row's id, or what its first column begins with."""
    for name in IDS:
        if isinstance(row.get(name), str | int):
            return f"row {row[name]!r}"
    for name, value in row.items():
        return f"row with {name} {value!r:.80}"
    return "an empty row"
