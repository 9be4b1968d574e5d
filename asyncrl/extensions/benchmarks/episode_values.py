"""The files of `asyncrl eval --rows`, read back by task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.textfile import json_lines
from asyncrl.types import FailureClass

METRICS = ("success", "reward")


def metric_of(paths: Iterable[Path]) -> str:
    """Return "success" if any episode of these files has a verdict, else "reward". Raises `ConfigError`."""
    return "success" if any(row["success"] is not None for path in paths for row in _read(path)) else "reward"


def values_by_task(path: Path, metric: str) -> dict[str, list[float]]:
    """Return the values of a metric by task, but for episodes that the environment or infrastructure failed.

    An episode without a verdict has no success, as in `asyncrl eval`. Raises `ConfigError` for a file that is none of
    `write_rows`, or in which no episode counts.
    """
    found: dict[str, list[float]] = {}
    for row in _read(path):
        if row["failure"] in (None, FailureClass.AGENT):
            found.setdefault(f"{row['env']}/{row['task']}", []).append(float(row[metric] or 0.0))
    if not found:
        raise ConfigError(f"{path}: no episode counts: the environment or the infrastructure failed them all")
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [row for _, row in json_lines(path)]
        for row in rows:
            for name in ("env", "task", "failure", *METRICS):
                row[name]
    except (InputError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: holds no rows of `asyncrl eval --rows` ({error!r})") from error
    if len({row.get("checkpoint") for row in rows}) > 1:
        raise ConfigError(f"{path}: holds several checkpoints, which the report beside it compares")
    return rows
