"""Trajectories as Parquet, one file a step, readable with `datasets.load_dataset("parquet", ...)`.

Column `messages` is the conversation in readable form, with the reward of each turn; null where it was not kept.
Column `task_json` is the whole task, with which the episode can be played again, and `info` is `Trajectory.info`, both
as JSON. Columns `advantages`, `policy_logprobs` (under the policy at the start of
the step) and `entropies` (of the distribution before the token, in nats) are what the step computed; null where it did
not, as for failed episodes. Column `images` has the places of images among the tokens, and `image_files` their files,
each once a trajectory; a message names one as `[image KEY]`.

`trained_turn_reward` is what the step trained on in place of `turn_reward`, null where it did not. The last columns are
those of kinds of extras (`COLUMNS`), null for trajectories that have none.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.data.token_extras.table import COLUMNS, columns_of
from asyncrl.data.transcript import read_transcript
from asyncrl.types import IMAGES, Group, Trajectory

MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.list_(pa.struct([(n, pa.string()) for n in ("id", "name", "arguments")]))),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
        ("reasoning_content", pa.string()),
        ("turn", pa.int32()),
        ("reward", pa.float32()),
    ]
)
TOKEN_VALUES = ("advantages", "policy_logprobs", "entropies")
"""Columns of numbers that a step computes for each token."""
TIMES = ("wall_s", "engine_s", "env_s")
"""Seconds of the whole episode, of its turns on an engine and of its steps in the environment."""


def _type(text: str) -> pa.DataType:
    """Return the type of a column, of a list in brackets."""
    return pa.list_(_type(text[1:-1])) if text.startswith("[") else pa.type_for_alias(text)


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
        ("messages", pa.list_(MESSAGE)),
        ("turn_start", pa.list_(pa.int32())),
        ("turn_end", pa.list_(pa.int32())),
        ("turn_reward", pa.list_(pa.float32())),
        ("trained_turn_reward", pa.list_(pa.float32())),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        *((name, pa.list_(pa.float32())) for name in TOKEN_VALUES),
        *((name, pa.float32()) for name in TIMES),
        ("info", pa.string()),
        ("task_json", pa.string()),
        ("images", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32()), ("key", pa.string())]))),
        ("image_files", pa.list_(pa.struct([("key", pa.string()), ("data", pa.binary())]))),
        *((name, _type(text)) for name, text in COLUMNS.items()),
    ]
)
_ARRAYS = {
    "token_ids": np.int32,
    "loss_mask": np.bool_,
    "behavior_logprobs": np.float32,
    "versions": np.int32,
}
_STOP = None


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What a step computed for the tokens of its rows."""

    rows: Sequence[Trajectory]
    columns: Mapping[str, Sequence[np.ndarray]]
    """By a name of `TOKEN_VALUES` a float32 array for each row, of its sampled tokens. A row for which the step has no
    values begins with NaN."""
    turn_rewards: Sequence[Sequence[float]] | None = None
    """[B][K] what each turn earned in the step, where that is not what the environment gave."""


class TrajectoryTable:
    """Writes `step-NNNNNN.parquet` files into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, groups: Sequence[Group], values: TokenValues | None = None) -> Path:
        """Write the step's trajectories; a repeated step replaces its file. Raises `OSError`."""
        path = self.folder / f"step-{step:06d}.parquet"
        write_trajectories(path, step, groups, values)
        return path


def write_trajectories(
    path: Path, step: int, groups: Sequence[Group], values: TokenValues | None = None
) -> None:
    """Write the trajectories of these groups to a file at once, in place of one that is there. Raises `OSError`."""
    tasks = {id(group): json.dumps(asdict(group.task), default=str) for group in groups}
    pairs = [(group, t) for group in groups for t in group.trajectories]
    rewards = {}
    if values is not None and values.turn_rewards is not None:
        rewards = {id(t): found for t, found in zip(values.rows, values.turn_rewards, strict=True)}
    rows = [
        _row(step, group, t) | {"task_json": tasks[id(group)], "trained_turn_reward": rewards.get(id(t))}
        for group, t in pairs
    ]
    columns: list[Any] = []
    for field in SCHEMA:
        if field.name in _ARRAYS:
            columns.append(_lists([getattr(t, field.name) for _, t in pairs], _ARRAYS[field.name]))
        elif field.name in TOKEN_VALUES:
            columns.append(_lists(_token_values([t for _, t in pairs], values, field.name), np.float32))
        else:
            columns.append(pa.array([row[field.name] for row in rows], field.type))
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class TrajectoryWriter:
    """Writes a table's files in a thread, in order, while training continues.

    At most `ahead` steps wait; further `put`s block. The next call raises the error of a failed write, and so does
    each call after it: no step's rows are lost silently.
    """

    def __init__(self, folder: Path, ahead: int = 2) -> None:
        self.table = TrajectoryTable(folder)
        self._waiting: queue.Queue[tuple[int, Sequence[Group], TokenValues | None] | None] = queue.Queue(
            ahead
        )
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trajectories", daemon=True)
        self._thread.start()

    def put(self, step: int, groups: Sequence[Group], values: TokenValues | None = None) -> None:
        """Queue a step's trajectories for writing. Raises the error of an earlier write."""
        self._check()
        self._waiting.put((step, groups, values))

    def flush(self) -> None:
        """Wait until everything put is on disk. Raises the error of a failed write."""
        self._waiting.join()
        self._check()

    def close(self) -> None:
        """Write what is queued and end the thread. Raises the error of a failed write."""
        self._waiting.put(_STOP)
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            try:
                if item is _STOP:
                    return
                if self._failure is None:
                    self.table.write(*item)
            except Exception as error:
                # The failure is the callers', not this thread's: the next call raises it.
                self._failure = error
            finally:
                self._waiting.task_done()


def _token_values(
    trajectories: Sequence[Trajectory], values: TokenValues | None, name: str
) -> list[np.ndarray | None]:
    """Return the column's numbers of each trajectory, None for those that the step has not computed."""
    if values is None or name not in values.columns:
        return [None] * len(trajectories)
    column = values.columns[name]
    places = {
        id(t): row for row, t in enumerate(values.rows) if len(column[row]) and not np.isnan(column[row][0])
    }
    return [_spread(t, column[places[id(t)]]) if id(t) in places else None for t in trajectories]


def _spread(t: Trajectory, sampled: np.ndarray) -> np.ndarray:
    """Return [L] numbers with those of the sampled tokens at their places, 0 elsewhere."""
    found = np.zeros(t.num_tokens, np.float32)
    found[t.loss_mask] = sampled
    return found


def _lists(arrays: Sequence[np.ndarray | None], dtype: Any) -> pa.ListArray:
    """One list per row, built from whole arrays: a Python object for each token would take a second."""
    found = [np.empty(0, dtype) if array is None else array for array in arrays]
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(array) for array in found], out=offsets[1:])
    values = np.concatenate([np.empty(0, dtype), *found]).astype(dtype, copy=False)
    missing = pa.array([array is None for array in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), mask=missing)


def _row(step: int, group: Group, t: Trajectory) -> dict[str, Any]:
    rewards = [turn.reward for turn in t.turns]
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
        "messages": read_transcript(t.conversation, rewards) if t.conversation else None,
        "turn_start": [turn.start for turn in t.turns],
        "turn_end": [turn.end for turn in t.turns],
        "turn_reward": rewards,
        **{name: t.timing.get(name) for name in TIMES},
        "info": json.dumps(t.info),
        **_images(t),
        **columns_of(t.extras),
    }


def _images(t: Trajectory) -> dict[str, Any]:
    """Return the columns with what the policy saw, each file once."""
    images = t.extras.get(IMAGES, ())
    files = {image.key: image.data for image in images}
    return {
        "images": [{"start": image.start, "end": image.end, "key": image.key} for image in images],
        "image_files": [{"key": key, "data": data} for key, data in files.items()],
    }
