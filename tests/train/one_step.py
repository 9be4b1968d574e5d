"""Training steps on fixed groups, in process or on two ranks (`tests.ranks`).

A stage is 1, 2 or 3, or as in `1-streamed` for steps whose groups arrive one by one, `2-flat` for steps with a
group of one outcome. `trainer-SCHEDULE` runs the trainer's loop.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch.distributed.distributed_c10d import _set_pg_timeout

from asyncrl.algo.objective import build_objective
from asyncrl.config import TrainConfig, parse_config
from asyncrl.data import codec
from asyncrl.train.checkpoint.policy_folder import gather_policy, write_policy
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.loading import load_policy
from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.controls import make_controls
from asyncrl.train.step.serve_rows import share_batch
from asyncrl.train.step.step import StepReport, train_step
from asyncrl.train.step.step_batch import StepBatch, build_step_batch, pad_rows
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.stream import StreamedStep
from asyncrl.train.step.whole_batch import whole_batch
from asyncrl.types import Group
from tests.train.factories import batch_of_groups, with_flat_groups
from tests.train.scripted_run import Scripted, groups_at, make_trainer

LEARNING_RATE = 1e-3
COLLECTIVE_S, LATE_S = 6.0, 9.0


class RecordingEngine(TrainEngine):
    """Keeps the gradient of each optimizer step (without ZeRO), and counts the rows that backward passes are for."""

    gradients: list[torch.Tensor]
    backward_rows: int = 0

    def outputs(self, token_ids: torch.Tensor, mask: torch.Tensor, *args: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            self.backward_rows += int(mask.any(-1).sum())
        return super().outputs(token_ids, mask, *args, **named)

    def step(self, learning_rate: float, divide_by: float = 1.0) -> float:
        found = [p.grad.flatten().clone() for p in self.engine.module.parameters() if p.grad is not None]
        self.gradients = [*getattr(self, "gradients", []), torch.cat(found) / divide_by]
        return super().step(learning_rate, divide_by)


def make_engine(model: str, zero_stage: int = 0, dtype: str = "float32", **train_keys: Any) -> TrainEngine:
    kind = RecordingEngine if (zero_stage, dtype) == (0, "float32") else TrainEngine
    train = TrainConfig(learning_rate=LEARNING_RATE, zero_stage=zero_stage, **train_keys)  # type: ignore[arg-type]
    return kind(load_policy(model, dtype), train, dtype)


def step_once(
    engine: TrainEngine,
    micro_batch_tokens: int = 10**6,
    batch: StepBatch | None = None,
    num_minibatches: int = 1,
    **algo: Any,
) -> StepReport:
    objective = build_objective(algo or {"preset": "decoupled_ppo"})
    chosen = shared(engine, batch)
    settings = StepSettings(1.0, micro_batch_tokens, num_minibatches, horizon=64.0)
    return train_step(engine, objective, AuxiliaryModels(objective), chosen, settings, LEARNING_RATE)


def shared(engine: TrainEngine, batch: StepBatch | None) -> StepBatch:
    """Return the batch given, or the fixed groups, as each rank gets it."""
    chosen = build_step_batch(batch_of_groups(), 0, 0) if batch is None else batch
    return share_batch(engine, chosen)


def make_stream(engine: TrainEngine, micro_batch_tokens: int = 10**6, **algo: Any) -> StreamedStep:
    objective = build_objective(algo or {"preset": "decoupled_ppo"})
    settings = StepSettings(1.0, micro_batch_tokens, 1, horizon=64.0)
    return StreamedStep(
        engine, objective, AuxiliaryModels(objective), settings, 0, LEARNING_RATE, objective.kl_coef
    )


def stream_once(
    engine: TrainEngine, micro_batch_tokens: int = 10**6, groups: list[Group] | None = None, **algo: Any
) -> StepReport:
    """Take the step of `step_once` on groups that arrive one by one, last first."""
    chosen = batch_of_groups() if groups is None else groups
    streamed = make_stream(engine, micro_batch_tokens, **algo)
    for group in reversed(chosen):
        streamed.add([group])
    report = streamed.finish(shared(engine, build_step_batch(chosen, 0, 0)))
    assert report is not None
    return report


def save_policy(engine: TrainEngine, folder: Path, base_model: str) -> Path:
    """Write the current weights as a checkpoint does. Call on every rank."""
    share = gather_policy(engine)
    folder.mkdir(parents=True, exist_ok=True)
    write_policy(engine, share, folder, base_model)
    engine.barrier()
    return folder


def saved_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a policy, from the file of each rank."""
    return {name: t for file in folder.glob("model*.safetensors") for name, t in load_file(file).items()}


class Learner:
    """A policy with everything its objective needs, as the trainer builds it."""

    def __init__(self, model: str, algo: dict[str, Any], zero_stage: int = 0, **sections: Any) -> None:
        train = {"learning_rate": LEARNING_RATE, "zero_stage": zero_stage}
        self.config = parse_config(
            {
                "model": {"path": model},
                "env": {"name": "gridworld"},
                "teacher": {"path": "self" if algo.get("preset") == "sdpo" else model},
                "algo": algo,
                "train": train,
                **sections,
            }
        )
        self.objective = build_objective(algo)
        kind = RecordingEngine if zero_stage == 0 else TrainEngine
        self.engine = kind(load_trained(self.config, self.objective, model), self.config.train, "float32")
        self.auxiliary = load_auxiliary_models(self.config, self.objective, self.engine, model)
        self.auxiliary.before_run(self.engine, 0)
        self.controls = make_controls(self.config, self.objective)

    def step(
        self, batch: StepBatch | None = None, micro_batch_tokens: int = 10**6, num_minibatches: int = 1
    ) -> StepReport:
        chosen = shared(self.engine, batch)
        settings = StepSettings(1.0, micro_batch_tokens, num_minibatches, horizon=64.0)
        report = train_step(
            self.engine, self.objective, self.auxiliary, chosen, settings, LEARNING_RATE, self.controls
        )
        report.metrics |= self.auxiliary.after_step(self.engine, chosen.step + 1, report.metrics)
        return report


def near_policy(engine: TrainEngine, groups: list[Group], noise: float = 0.05) -> list[Group]:
    """Give every token the policy's own log-probability, slightly disturbed, as a nearby engine would."""
    rng = np.random.default_rng(0)
    found = []
    for group in groups:
        batch = build_step_batch([group], group.version, 0)
        rows = pad_rows(batch, range(len(batch.trajectories)))
        with torch.no_grad():
            logp = engine.logp(rows.token_ids, rows.mask, 1.0).numpy()
        trajectories = []
        for row, t in enumerate(batch.trajectories):
            disturbed = np.minimum(logp[row, : t.num_tokens] + rng.normal(0, noise, t.num_tokens), 0.0)
            values = np.where(t.loss_mask, disturbed, 0.0).astype(np.float32)
            trajectories.append(replace(t, behavior_logprobs=values))
        found.append(replace(group, trajectories=tuple(trajectories)))
    return found


def snapshot(engine: TrainEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights()}


def run_trainer(model: str, out: Path, schedule: str) -> None:
    """Run the trainer's loop for two steps; leave the weights, and what rank 0 decoded and encoded."""
    engine = make_engine(model, 1)
    script = Scripted([groups_at(0), groups_at(1)])
    counts = Counter[str]()
    with count_codec(counts):
        trainer = make_trainer(engine, script, 2, max_staleness=0, schedule=schedule)
        trainer.run()
    save_policy(engine, out / f"checkpoint-trainer-{schedule}", model)
    if engine.rank == 0:
        (out / f"trainer-{schedule}.json").write_text(json.dumps({"calls": script.calls, **counts}))


@contextmanager
def count_codec(counts: Counter[str]) -> Iterator[None]:
    """Count the groups that are decoded and encoded while it is open."""
    decode, encode = codec.group_from_map, codec.group_to_map

    def counted(what: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            return function(*args, **kwargs)

        return call

    codec.group_from_map, codec.group_to_map = counted("decoded", decode), counted("encoded", encode)
    try:
        yield
    finally:
        codec.group_from_map, codec.group_to_map = decode, encode


class LateScript(Scripted):
    """Has a batch only after `late_s`."""

    def __init__(self, batches: list[Any], late_s: float) -> None:
        super().__init__(batches)
        self.due = time.monotonic() + late_s

    def take(self, step: int, wait_s: float) -> Any:
        time.sleep(min(wait_s, max(0.0, self.due - time.monotonic())))
        return super().take(step, wait_s) if time.monotonic() >= self.due else None


def train_late(model: str, out: Path) -> None:
    """Train one step on a batch that comes later than a collective waits."""
    engine = make_engine(model, 1)
    trainer = make_trainer(engine, LateScript([groups_at(0)], LATE_S), 1, wait_timeout_s=600.0)
    _set_pg_timeout(timedelta(seconds=COLLECTIVE_S))
    try:
        version = trainer.run()
    finally:
        _set_pg_timeout(timedelta(minutes=30))
    (out / f"late-{engine.rank}").write_text(str(version))


def serve_shares(model: str, out: Path) -> None:
    """Leave which rows each rank has after the first pass and the second, over fewer rows."""
    engine = make_engine(model, 1)
    batch, settings = shared(engine, None), StepSettings(1.0, 60, 1, horizon=64.0)
    held = []
    for rows in (list(range(12)), list(range(6))):
        found = whole_batch(
            engine,
            batch,
            settings,
            lambda micro: engine.outputs(micro.token_ids, micro.mask, 1.0),
            ("logp",),
            rows,
        )["logp"]
        held.append(sorted(batch.held))
    kept = {"held": held, "trajectories": len(batch.trajectories), "values": len(found.values)}
    (out / f"shares-{engine.rank}.json").write_text(json.dumps(kept))


def main(model: str, out: str, *zero_stages: str) -> None:
    for name in zero_stages:
        stage, _, form = name.partition("-")
        if stage == "shares":
            serve_shares(model, Path(out))
            continue
        if stage == "late":
            train_late(model, Path(out))
            continue
        if stage == "trainer":
            run_trainer(model, Path(out), form)
            continue
        engine = make_engine(model, int(stage), sequence_parallel=2 if form == "together" else 1)
        take = stream_once if form == "streamed" else step_once
        named = {"batch": build_step_batch(with_flat_groups(1.0), 0, 0)} if form == "flat" else {}
        reports = [take(engine, micro_batch_tokens=60, **named).metrics for _ in range(2)]
        save_policy(engine, Path(out) / f"checkpoint-{name}", model)
        if engine.rank == 0:
            (Path(out) / f"{name}.json").write_text(json.dumps(reports))
