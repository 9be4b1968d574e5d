"""Single episodes of an evaluation as lines of JSON: what two evaluations are compared by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
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
            }


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as lines of JSON. Raises `ConfigError` where they cannot be written."""
    try:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def values_by_task(path: Path, metric: str) -> dict[str, list[float]]:
    """Return the values of a metric by task, but for episodes that the environment or infrastructure failed.

    Raises `ConfigError` for a file that is none of `write_rows`, or in which no episode has the metric.
    """
    found: dict[str, list[float]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["failure"] in (None, FailureClass.AGENT) and row[metric] is not None:
                found.setdefault(f"{row['env']}/{row['task']}", []).append(float(row[metric]))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: holds no rows of `asyncrl eval --rows` ({error})") from error
    if not found:
        raise ConfigError(f"{path}: no episode has a {metric}")
    return found
