"""Training steps on fixed groups, in process or under torchrun: `-m tests.train.one_step MODEL OUT STAGE...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from asyncrl.algo.objective import build_objective
from asyncrl.config import TrainConfig
from asyncrl.train.anchors import Anchors
from asyncrl.train.batch import StepBatch, build_step_batch
from asyncrl.train.checkpoint import save_policy
from asyncrl.train.engine import TrainEngine
from asyncrl.train.policy import load_policy
from asyncrl.train.step import StepReport, StepSettings, train_step
from tests.train.factories import batch_of_groups

LEARNING_RATE = 1e-3


class RecordingEngine(TrainEngine):
    """Keeps the gradient of each optimizer step (without ZeRO)."""

    gradients: list[torch.Tensor]

    def step(self, learning_rate: float) -> float:
        found = [p.grad.flatten().clone() for p in self.engine.module.parameters() if p.grad is not None]
        self.gradients = [*getattr(self, "gradients", []), torch.cat(found)]
        return super().step(learning_rate)


def make_engine(model: str, zero_stage: int = 0) -> TrainEngine:
    kind = RecordingEngine if zero_stage == 0 else TrainEngine
    train = TrainConfig(learning_rate=LEARNING_RATE, zero_stage=zero_stage)  # type: ignore[arg-type]
    return kind(load_policy(model, "float32"), train, "float32")


def step_once(
    engine: TrainEngine,
    micro_batch_tokens: int = 10**6,
    batch: StepBatch | None = None,
    num_minibatches: int = 1,
    **algo: Any,
) -> StepReport:
    objective = build_objective(algo or {"preset": "decoupled_ppo"})
    chosen = build_step_batch(batch_of_groups(), 0, 0) if batch is None else batch
    settings = StepSettings(1.0, micro_batch_tokens, num_minibatches, horizon=64.0)
    return train_step(engine, objective, Anchors(objective), chosen, settings, LEARNING_RATE)


def snapshot(engine: TrainEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights()}


def main(model: str, out: str, *zero_stages: str) -> None:
    for stage in zero_stages:
        engine = make_engine(model, int(stage))
        reports = [step_once(engine, micro_batch_tokens=60).metrics for _ in range(2)]
        save_policy(engine, Path(out) / f"checkpoint-{stage}", model)
        if engine.rank == 0:
            (Path(out) / f"{stage}.json").write_text(json.dumps(reports))


if __name__ == "__main__":
    main(*sys.argv[1:])
