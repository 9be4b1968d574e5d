"""Single episodes of an evaluation as lines of JSON: what two evaluations are compared by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.textfile import json_lines
from asyncrl.types import FailureClass, Group

METRICS = ("success", "reward")


def episode_rows(groups: Iterable[Group], samples: int) -> Iterator[dict[str, Any]]:
    """Yield one row an episode; further trajectories of an episode that branched are none."""
    for group in groups:
        for index, t in enumerate(group.trajectories[:samples]):
            yield {
                "env": group.task.env,
                "task": group.task.id,
                "sample": index,
                "reward": t.reward,
                "success": t.success,
                "status": str(t.status),
                "failure": str(t.failure) if t.failure else None,
                "turns": len(t.turns),
                "tokens": t.num_sampled,
                # Each turn reads all that stands before it.
                "read_tokens": sum(turn.start for turn in t.turns),
            }


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as lines of JSON. Raises `ConfigError` where they cannot be written."""
    try:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


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
