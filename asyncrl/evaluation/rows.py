"""Single episodes of an evaluation as lines of JSON: what two evaluations are compared by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.types import Group


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
