"""Successes that were recorded before the run, for groups that none of the run's own can complete.

    the Parquet files of a run's trajectories -> of each problem the shortest success that is a whole episode

A success keeps the tokens that were sampled and the log-probabilities with which they were: it may be of any policy
whose token ids mean the same, such as a stronger model of the same family. Versions of another run say nothing here.
What this run could not train is refused before it starts. Torch-free.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncrl.config import Config
from asyncrl.data.codec import task_from_map, trajectory_from_map, trajectory_to_map
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.replay.recorded_tokenizer import check_tokenizer
from asyncrl.extensions.replay.settings import ReplayConfig
from asyncrl.extensions.replay.success_pool import best_success, problem
from asyncrl.jsonfile import read_json
from asyncrl.run.model_folder import vocab_size
from asyncrl.types import NOT_SAMPLED, Group, Status, Trajectory, Turn

KEY = "train.complete_from"
TABLES = "trajectories"
"""The folder of a run that has its episodes."""
VERDICT = ("status", "success", "reward")
"""Columns that say whether an episode succeeded."""
REST = (
    "group", "episode_index", "task_json", "token_ids", "loss_mask", "behavior_logprobs", "turn_start", "turn_end",
    "turn_reward", "components", "info", "images",
)  # fmt: skip
SAME = (("env", "config"), ("data", "reward"))
"""Settings by which a seed is the same problem, and a reward means the same, in both runs."""


Files = tuple[tuple[Path, int], ...]
"""Files to read, each with the nanosecond of its last change."""


class Terms(NamedTuple):
    """What is asked of rows."""

    path: str
    env: str
    """The run's environment."""
    max_tokens: int
    num_ids: int
    """Token ids of the model, 0 where that is not known."""


def recorded_successes(config: Config, model: str = "") -> dict[str, Group]:
    """Return the successes that `train.complete_from` names, by problem: each as a group with that one trajectory.

    model: the folder or hub name of the policy; "" for `model.path`. Raises `ConfigError` naming the file, and the row,
    that this run cannot train.
    """
    return _read(*_asked(config, model or config.model.path))


def recorded_problems(config: Config) -> frozenset[str]:
    """Return the problems of which there is a recorded success; none without a file. Raises `ConfigError`."""
    if not config.section(ReplayConfig).complete_from:
        return frozenset()
    return _problems(*_asked(config, config.model.path))


def _asked(config: Config, model: str) -> tuple[Files, Terms]:
    """Return the files to read, and what is asked of rows; refuse runs with other problems, rewards or tokens."""
    path = Path(config.section(ReplayConfig).complete_from)
    files = tables(path)
    for run in sorted({run for file in files if (run := run_of(file)) is not None}):
        check_settings(config, run)
        check_tokenizer(KEY, run, model)
    states = tuple((file, file.stat().st_mtime_ns) for file in files)
    return states, Terms(str(path), config.env.name, config.max_tokens, vocab_size(model))


def _read(files: Files, terms: Terms) -> dict[str, Group]:
    found = Shortest(terms)
    for file, _ in files:
        for row in _successful(file):
            found.add(file, row)
    if not found.groups:
        raise ConfigError(f"{KEY}: {terms.path}: has no success that could complete a group: {found.told()}")
    return found.groups


@functools.lru_cache(maxsize=1)
def _problems(files: Files, terms: Terms) -> frozenset[str]:
    """A launcher asks several times, and reads files that are as they were once."""
    return frozenset(_read(files, terms))


def check_recorded(config: Config, alone: bool) -> None:
    """Refuse recorded successes that the run cannot train. alone: see `check_run`. Raises `ConfigError`."""
    recorded_problems(config)


def tables(path: Path) -> list[Path]:
    """Return the Parquet files of a run's folder, of a folder of such files, or the one file. Raises `ConfigError`."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(
            f"{KEY}: there is no file or folder {str(path)!r}; give the folder of a run, or Parquet files of its "
            f"{TABLES}/"
        )
    found = sorted((path / TABLES).glob("*.parquet")) or sorted(path.glob("*.parquet"))
    if not found:
        raise ConfigError(
            f"{KEY}: {path}: has no Parquet files, nor has its {TABLES}/, where a run keeps episodes"
        )
    return found


def run_of(file: Path) -> Path | None:
    """Return the folder of the run that a file is in; None where there is none."""
    folder = file.resolve().parent
    return folder.parent if folder.name == TABLES and (folder.parent / "config.json").is_file() else None


def check_settings(config: Config, run: Path) -> None:
    """Refuse a run that posed other problems under the same seeds, or rewarded otherwise. Raises `ConfigError`."""
    theirs, ours = read_json(run / "config.json") or {}, config.model_dump(mode="json")
    for section, name in SAME:
        was, given = theirs.get(section, {}).get(name), ours[section][name]
        if was != given:
            raise ConfigError(
                f"{KEY}: {run} was recorded with {section}.{name}={was!r}, and this run has {given!r}: a success there "
                "need not be one here"
            )


class Shortest:
    """Takes in rows, and keeps of each problem the shortest success that this run can train."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.groups: dict[str, Group] = {}
        self.left_out: Counter[str] = Counter()

    def add(self, file: Path, row: Mapping[str, Any]) -> None:
        """Take in the row of an episode that succeeded. Raises `ConfigError`."""
        where = f"{KEY}: {file}: episode {row['episode_index']} of group {row['group']!r}"
        missing = [name for name in REST[2:-2] if row[name] is None]
        if missing:
            raise ConfigError(
                f"{where}: has no {missing[0]}, without which it cannot be trained as it was sampled"
            )
        if row["images"]:
            self.left_out["with images"] += 1
        elif len(row["token_ids"]) > self.terms.max_tokens:
            self.left_out[f"of more than engine.max_model_len={self.terms.max_tokens} tokens"] += 1
        else:
            self._keep(self._group(file, row, where))

    def told(self) -> str:
        """Say what has been left out."""
        return (
            ", ".join(f"{number} {what}" for what, number in self.left_out.items()) or "no episode succeeded"
        )

    def _keep(self, group: Group) -> None:
        if best_success(group.trajectories) is None:
            self.left_out["of several trajectories, or branched off another"] += 1
            return
        key = problem(group.task)
        before = self.groups.get(key)
        if before is None or group.trajectories[0].num_tokens < before.trajectories[0].num_tokens:
            self.groups[key] = group

    def _group(self, file: Path, row: Mapping[str, Any], where: str) -> Group:
        try:
            task = task_from_map(json.loads(row["task_json"]))
            t = trajectory_from_map(trajectory_to_map(_trajectory(row, task.id)))
        except (InputError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error
        if task.env != self.terms.env:
            raise ConfigError(
                f"{where}: is of the environment {task.env!r}, and this run has env.name={self.terms.env!r}"
            )
        if not task.data and run_of(file) is None:
            raise ConfigError(
                f"{where}: its task is a seed alone, and what problem that is depends on env.config; give the folder "
                "of the run, whose config.json says with which it was recorded"
            )
        if self.terms.num_ids and (highest := int(t.token_ids.max())) >= self.terms.num_ids:
            raise ConfigError(
                f"{where}: token_ids must be below {self.terms.num_ids}, the model's vocabulary, got {highest}"
            )
        return Group(str(row["group"]), task, 0, (t,))


def _successful(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file whose episode succeeded. Raises `ConfigError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            missing = sorted({*VERDICT, *REST} - set(opened.schema_arrow.names))
            if missing:
                raise ConfigError(
                    f"{KEY}: {file}: has no column {missing[0]}; needed are the columns that runs write, with the "
                    "tokens as they were sampled and their log-probabilities (rows of text can be learned from by "
                    "sft.data)"
                )
            for number in range(opened.num_row_groups):
                table = opened.read_row_group(number, [*VERDICT, *REST])
                chosen = [_succeeded(row) for row in table.select(VERDICT).to_pylist()]
                yield from table.filter(pa.array(chosen, pa.bool_())).to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError(f"{KEY}: {file}: cannot be read: {error}") from error


def _succeeded(row: Mapping[str, Any]) -> bool:
    """What `asyncrl.algo.curation.signal.succeeded` says of the row, of episodes that can be trained."""
    if row["status"] == Status.FAILED or row["reward"] is None:
        return False
    return bool(row["reward"] > 0 if row["success"] is None else row["success"])


def _trajectory(row: Mapping[str, Any], task_id: str) -> Trajectory:
    mask = np.asarray(row["loss_mask"], np.bool_)
    turns = zip(row["turn_start"], row["turn_end"], row["turn_reward"], strict=True)
    return Trajectory(
        task_id=task_id,
        episode_index=int(row["episode_index"]),
        token_ids=np.asarray(row["token_ids"], np.int32),
        loss_mask=mask,
        behavior_logprobs=np.asarray(row["behavior_logprobs"], np.float32),
        versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
        turns=tuple(Turn(start, end, float(reward)) for start, end, reward in turns),
        reward=float(row["reward"]),
        status=Status(row["status"]),
        components={one["name"]: one["value"] for one in row["components"] or ()},
        success=row["success"],
        info=json.loads(row["info"] or "{}"),
    )
