"""Trajectories as Parquet, one file a step, readable with `datasets.load_dataset("parquet", ...)`.

Column `info` is `Trajectory.info` as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.types import Group

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.string()),
        ("task", pa.string()),
        ("env", pa.string()),
        ("episode_index", pa.int32()),
        ("worker", pa.string()),
        ("version_admitted", pa.int32()),
        ("status", pa.string()),
        ("failure", pa.string()),
        ("error", pa.string()),
        ("reward", pa.float32()),
        ("success", pa.bool_()),
        ("components", pa.list_(pa.struct([("name", pa.string()), ("value", pa.float32())]))),
        ("turn_start", pa.list_(pa.int32())),
        ("turn_end", pa.list_(pa.int32())),
        ("turn_reward", pa.list_(pa.float32())),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("wall_s", pa.float32()),
        ("info", pa.string()),
    ]
)


class TrajectoryTable:
    """Writes `step-NNNNNN.parquet` files into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, groups: Sequence[Group]) -> Path:
        """Write the step's trajectories; a repeated step replaces its file."""
        rows = [_row(step, group, t) for group in groups for t in group.trajectories]
        path = self.folder / f"step-{step:06d}.parquet"
        partial = path.with_suffix(".partial")
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), partial, compression="zstd")
        partial.replace(path)
        return path


def _row(step: int, group: Group, t: Any) -> dict[str, Any]:
    return {
        "step": step,
        "group": group.id,
        "task": t.task_id,
        "env": group.task.env,
        "episode_index": t.episode_index,
        "worker": group.worker,
        "version_admitted": group.version,
        "status": str(t.status),
        "failure": str(t.failure) if t.failure else None,
        "error": t.error,
        "reward": t.reward,
        "success": t.success,
        "components": [{"name": name, "value": value} for name, value in t.components.items()],
        "turn_start": [turn.start for turn in t.turns],
        "turn_end": [turn.end for turn in t.turns],
        "turn_reward": [turn.reward for turn in t.turns],
        "token_ids": t.token_ids,
        "loss_mask": t.loss_mask,
        "behavior_logprobs": t.behavior_logprobs,
        "versions": t.versions,
        "wall_s": t.timing.get("wall_s"),
        "info": json.dumps(t.info),
    }
