"""Supervised phases between steps: imitate the run's own successes (Entropulse, ComputerRL arXiv 2508.14040).

The successes come from batches that have been trained, so a phase generates nothing: the shortest one of each task is
used once, in a few optimizer steps of plain likelihood. This restores the entropy that reinforcement learning removes.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from asyncrl.data.codec import decode_trajectory, encode_trajectory, pack, unpack
from asyncrl.extensions.sft_phase.settings import SftPhaseConfig
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import GO_ON, TrainerCallback, Verdict
from asyncrl.train.step.controls import successes
from asyncrl.train.step.serve_rows import plan_rows, serve_rows, share_batch
from asyncrl.train.step.step import StepReport
from asyncrl.train.step.step_batch import StepBatch, pad_rows
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import Trajectory


class SftPhase:
    """Remembers successful trajectories and trains on them every `every` steps."""

    def __init__(self, config: SftPhaseConfig) -> None:
        self.config = config
        self.kept: dict[str, Trajectory] = {}
        """The shortest success of each task, oldest task first; on the first rank."""

    def after_step(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, version: int
    ) -> dict[str, float]:
        """Take in a trained batch and run a phase when `version` calls for one; return its metrics. A collective."""
        if not self.config.every:
            return {}
        self._remember(successes(batch.trajectories))
        count = 0 if version % self.config.every else engine.on_first(lambda: len(self.kept))
        if not count:
            return {}
        rng = random.Random(version)
        order = rng.sample(list(self.kept.values()), len(self.kept))
        self.kept.clear()
        size = math.ceil(count / self.config.steps)
        losses = [
            imitate(engine, order[start : start + size], settings, self.config.learning_rate)
            for start in range(0, count, size)
        ]
        return {
            "sft_phase/loss": losses[-1],
            "sft_phase/steps": float(len(losses)),
            "sft_phase/sequences": float(count),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the remembered successes in their wire form."""
        body = pack([encode_trajectory(trajectory) for trajectory in self.kept.values()])
        return {"kept": torch.frombuffer(bytearray(body), dtype=torch.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        kept = [decode_trajectory(body) for body in unpack(state["kept"].numpy().tobytes())]
        self.kept = {trajectory.task_id: trajectory for trajectory in kept}

    def _remember(self, found: list[Trajectory]) -> None:
        for trajectory in found:
            known = self.kept.get(trajectory.task_id)
            if known is None or trajectory.num_sampled < known.num_sampled:
                self.kept[trajectory.task_id] = trajectory
        while len(self.kept) > self.config.keep:
            del self.kept[next(iter(self.kept))]


def imitate(
    engine: TrainEngine, trajectories: list[Trajectory], settings: StepSettings, learning_rate: float
) -> float:
    """Take one optimizer step of negative log-likelihood, token mean; return the loss.

    A collective; the first rank has the trajectories.
    """
    whole = StepBatch(tuple(trajectories), torch.zeros(len(trajectories), dtype=torch.long), 0)
    batch = share_batch(engine, whole if engine.rank == 0 else None)
    num_tokens = int(batch.counts.sum())
    total = torch.zeros((), device=engine.device)
    plan = plan_rows(engine, batch, settings.micro_batch_tokens)
    serve_rows(engine, batch, plan)
    mine = plan[engine.share]
    for number, rows in enumerate(mine):
        padded = pad_rows(batch, rows)
        loss = -engine.logp(padded.token_ids, padded.mask, 1.0, padded.extras).sum() / num_tokens
        engine.backward(loss, last=number == len(mine) - 1)
        total += loss.detach()
    engine.sum_shares(total)
    engine.step(learning_rate)
    return float(total)


class SftPhases(TrainerCallback):
    """Runs supervised phases between steps, on all ranks."""

    name = "sft_phase"

    def __init__(self, phase: SftPhase) -> None:
        self.phase = phase

    def after_step(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, report: StepReport
    ) -> Verdict:
        if report.went_back_to is not None:
            return GO_ON
        return Verdict(self.phase.after_step(engine, batch, settings, batch.step + 1))

    def state_dict(self) -> dict[str, Any]:
        return self.phase.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.phase.load_state_dict(state)


def sft_phases(context: CallbackContext) -> SftPhases:
    """Return the callback of a run whose `sft_phase.every` is above 0."""
    return SftPhases(SftPhase(context.config.section(SftPhaseConfig)))
