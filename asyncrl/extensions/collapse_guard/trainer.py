"""The guard in the trainer: after a collapse of rewards it slows training down, or has an earlier policy come back.

Its rule is a pure function, `asyncrl.extensions.collapse_guard.rule`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from asyncrl.config import TrainConfig
from asyncrl.extensions.collapse_guard.rule import (
    NAME,
    GuardState,
    StepSignals,
    good_checkpoint,
    judge,
    state_of,
)
from asyncrl.extensions.collapse_guard.rule import Verdict as Judgement
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import TrainerCallback, Verdict
from asyncrl.train.step.controls import scheduled_rate
from asyncrl.train.step.step import StepReport
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings


class CollapseGuard(TrainerCallback):
    """Watches the rewards of each step's groups, on all ranks.

    checkpointer: of what it may bring back; without one it slows down only.
    """

    name = NAME
    survives_going_back = True
    may_go_back = True

    def __init__(self, train: TrainConfig, checkpointer: Checkpointer | None) -> None:
        self.train = train
        self.checkpointer = checkpointer
        self.state = GuardState()

    @property
    def rate_factor(self) -> float:
        return self.state.scale

    def update(self, batch: StepBatch, metrics: dict[str, float], checkpoints: Sequence[int]) -> Judgement:
        """Judge a step by its batch, on the first rank, which has all of it."""
        self.state, judgement = judge(self.state, step_signals(batch, metrics), checkpoints)
        return judgement

    def after_step(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, report: StepReport
    ) -> Verdict:
        saver = self.checkpointer

        def judged() -> dict[str, Any]:
            kept = saver.versions() if saver is not None else []
            found = self.update(batch, report.metrics, kept)
            pinned = good_checkpoint(self.state, kept)
            return {"state": asdict(self.state), "pinned": pinned, **asdict(found)}

        found = engine.on_first(judged)
        self.state = state_of(found["state"])
        if saver is not None:
            saver.pinned = found["pinned"]
        back = found["version"] if found["action"] == "go_back" and saver is not None else None
        metrics = {"guard/rate_scale": self.state.scale}
        if not found["why"]:
            return Verdict(metrics, back)
        rate = scheduled_rate(self.train, batch.step + 1) * self.state.scale

        def message(went_back: bool) -> str:
            where = f"; back to version {back}" if went_back else ""
            return f"{found['why']}{where}; the learning rate is now {rate:.2g} (train.collapse_guard)"

        return Verdict(metrics, back, message, level=logging.WARNING, stops_without=False)

    def state_dict(self) -> dict[str, Any]:
        return {"state": json.dumps(asdict(self.state))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state_of(json.loads(state["state"]))


def step_signals(batch: StepBatch, metrics: dict[str, float]) -> StepSignals:
    """Return what the guard is told of a step, on the first rank."""
    by_group: dict[int, list[float]] = {}
    fresh = batch.fresh_trajectories
    for row in batch.fresh_rows:
        by_group.setdefault(int(batch.group[row]), []).append(batch.trajectories[row].reward)
    rewards = [sum(found) / len(found) for found in by_group.values()]
    sampled = np.concatenate([t.behavior_logprobs[t.loss_mask] for t in fresh])
    tokens = max(1, sum(batch.lags.values()))
    lag = sum(lag * n for lag, n in batch.lags.items()) / tokens
    surprise = -float(sampled.mean()) if len(sampled) else 0.0
    drift = metrics.get("mismatch/kl_k3", 0.0)
    return StepSignals.of(batch.step, math.floor(batch.step - lag), rewards, drift, surprise)


def collapse_guard(context: CallbackContext) -> CollapseGuard:
    """Return the callback of a run with `train.collapse_guard`."""
    return CollapseGuard(context.config.train, context.checkpointer)
