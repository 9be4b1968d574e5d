"""The trainer with the machine to itself: it trains on the recorded batches of a finished run again.

    python scripts/bench/trainer_alone.py RUN --model BASE --engine URL --weights FOLDER

It does what the trainer of the run did, in order and from the same base weights: it trains, publishes to the engine,
which has nothing else to do, and records. Only the wait for batches is left out. The last line of its output has
"groups", how many were trained from the first step's end to the last's, and both moments as "start" and "end". RUN is
not changed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq

from asyncrl.config import load_config
from asyncrl.credentials import own_credentials
from asyncrl.data.codec import encode_group
from asyncrl.types import Group, Status, Task, Trajectory, Turn


class RecordedBatches:
    """A finished run's trajectories as the trainer's source: step k gets the same batch as in the run."""

    def __init__(self, folder: Path) -> None:
        paths = sorted((folder / "trajectories").glob("step-*.parquet"))
        self.batches = [[encode_group(group) for group in read_groups(path)] for path in paths]

    def take(self, step: int, wait_s: float) -> Sequence[bytes]:
        return self.batches[step]

    def commit(self, version: int) -> None: ...

    def stats(self) -> dict[str, Any]:
        return {}


def read_groups(path: Path) -> list[Group]:
    """Return the groups of one recorded step, as far as training reads them."""
    rows = pq.read_table(path).to_pylist()
    return [_group(list(members)) for _, members in groupby(rows, key=lambda row: row["group"])]


def _group(rows: list[dict[str, Any]]) -> Group:
    first = rows[0]
    task = Task(id=first["task"], env=first["env"], data={})
    return Group(first["group"], task, first["version_admitted"], tuple(_trajectory(row) for row in rows))


def _trajectory(row: dict[str, Any]) -> Trajectory:
    return Trajectory(
        task_id=row["task"],
        episode_index=row["episode_index"],
        token_ids=np.array(row["token_ids"], np.int32),
        loss_mask=np.array(row["loss_mask"], bool),
        behavior_logprobs=np.array(row["behavior_logprobs"], np.float32),
        versions=np.array(row["versions"], np.int32),
        turns=tuple(
            Turn(*turn) for turn in zip(row["turn_start"], row["turn_end"], row["turn_reward"], strict=True)
        ),
        reward=row["reward"],
        status=Status(row["status"]),
        components={part["name"]: part["value"] for part in row["components"]},
        success=row["success"],
        timing={} if row["wall_s"] is None else {"wall_s": row["wall_s"]},
        info=json.loads(row["info"]),
    )


def train_alone(run: Path, model: str, engine_url: str, weights: Path) -> dict[str, float]:
    """Train on what `run` recorded; return what `main` prints."""
    from asyncrl.algo.objective import build_objective
    from asyncrl.process_hooks import set_threads
    from asyncrl.services.trainer.recorder import Recorder
    from asyncrl.services.trainer.transports import open_publisher
    from asyncrl.train.engine.deepspeed_engine import TrainEngine, leave_distributed
    from asyncrl.train.features.sampled_check import SampledCheck
    from asyncrl.train.loop.batches import BatchSource
    from asyncrl.train.loop.callbacks import Recording
    from asyncrl.train.loop.trainer import Trainer
    from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained

    config = load_config(run / "config.json")
    set_threads(config.run.threads)
    objective = build_objective(config.algo)
    engine = TrainEngine(load_trained(config, objective, model), config.train, config.model.dtype)
    ends: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as name:
        publisher = open_publisher(
            config, engine, [engine_url], weights / "alone", own_credentials(), Path(name)
        )
        recorder = Recorder(Path(name), True)

        def on_step(version: int, metrics: dict[str, Any]) -> None:
            recorder.on_step(version, metrics)
            ends.append((time.time(), metrics["batch/groups"]))

        auxiliary = load_auxiliary_models(config, objective, engine, model)
        Trainer(
            config, engine, objective, auxiliary, cast(BatchSource, RecordedBatches(run)), publisher,
            callbacks=[SampledCheck(config, None), Recording(on_step, recorder.on_commit)],
        ).run()  # fmt: skip
        publisher.close()
        recorder.close()
    leave_distributed()
    start, end = ends[0][0], ends[-1][0]
    return {"groups": sum(groups for _, groups in ends[1:]), "start": start, "end": end}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", required=True, help="folder of the base model")
    parser.add_argument("--engine", required=True, help="its address; it must have the base model's weights")
    parser.add_argument(
        "--weights", type=Path, required=True, help="the folder of weights that the engine reads"
    )
    args = parser.parse_args()
    print(json.dumps(train_alone(args.run, args.model, args.engine, args.weights)))


if __name__ == "__main__":
    main()
