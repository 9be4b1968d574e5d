"""One training step: advantages over the whole batch, then losses by micro-batch, then the optimizer.

`train_step` is the same for one rank or many. Every rank holds the whole batch (a few numbers a token) and
runs the model only on its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, Totals, count_totals
from asyncrl.algo.metrics import Metrics, merge, reduce_over_ranks
from asyncrl.algo.objective import Objective
from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.train.anchors import Anchors
from asyncrl.train.batch import Rows, StepBatch, advantage_batch, pad_rows
from asyncrl.train.engine import TrainEngine


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The part of the configuration a step reads."""

    temperature: float
    micro_batch_tokens: int
    num_minibatches: int
    horizon: float
    """Length for fixed-length aggregation where the recipe gives none."""


@dataclass(slots=True)
class StepReport:
    """What a step did."""

    metrics: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_sequences: int = 0
    skipped: str = ""
    """Why no optimizer step was taken, empty when one was."""


def train_step(
    engine: TrainEngine,
    objective: Objective,
    anchors: Anchors,
    batch: StepBatch,
    settings: StepSettings,
    learning_rate: float,
) -> StepReport:
    """Train on one batch. A collective: call on every rank with the same batch.

    Raises ValueError naming the tensor when one is not finite; nothing has been applied then.
    """
    token_tensors = anchors.token_tensors(engine, objective, batch, settings)
    estimate = objective.estimate(advantage_batch(batch, token_tensors.for_advantages()))
    keep = (
        estimate.keep if estimate.keep is not None else torch.ones(len(batch.trajectories), dtype=torch.bool)
    )
    kept = [row for row in range(len(batch.trajectories)) if bool(keep[row])]
    if not kept:
        return StepReport(
            skipped="every trajectory was filtered out", metrics=objective.report(estimate.metrics)
        )
    parts: list[Metrics] = []
    norms = []
    for rows in split_minibatches(batch, kept, settings.num_minibatches):
        norms.append(
            _minibatch(
                engine,
                objective,
                batch,
                rows,
                estimate.advantages,
                token_tensors,
                settings,
                learning_rate,
                parts,
            )
        )
    metrics = objective.report(reduce_over_ranks(merge(parts), engine.all_reduce) | estimate.metrics)
    metrics["grad_norm"] = max(norms)
    metrics["learning_rate"] = learning_rate
    mask_tokens = sum(batch.trajectories[row].num_sampled for row in kept)
    return StepReport(metrics, mask_tokens, len(kept))


def _minibatch(
    engine: TrainEngine,
    objective: Objective,
    batch: StepBatch,
    rows: Sequence[int],
    advantages: Tensor,
    token_tensors: Any,
    settings: StepSettings,
    learning_rate: float,
    parts: list[Metrics],
) -> float:
    totals = _totals(batch, rows, objective.horizon or settings.horizon)
    lengths = [batch.trajectories[row].num_tokens for row in rows]
    plan = plan_micro_batches(lengths, settings.micro_batch_tokens, engine.num_ranks)[engine.rank]
    for number, chosen in enumerate(plan):
        micro = pad_rows(batch, [rows[i] for i in chosen])
        logp, entropy = engine.logp(
            micro.token_ids, micro.mask, settings.temperature, objective.needs_entropy
        )
        inputs = loss_inputs(batch, micro, logp, entropy, advantages, token_tensors)
        loss, metrics = objective.loss(inputs, totals)
        engine.backward(loss, last=number == len(plan) - 1)
        parts.append(metrics)
    norm = engine.step(learning_rate)
    if not math.isfinite(norm):
        raise ValueError(f"gradient norm is {norm}")
    return norm


def loss_inputs(
    batch: StepBatch,
    micro: Rows,
    logp: Tensor,
    entropy: Tensor | None,
    advantages: Tensor,
    token_tensors: Any,
) -> LossInputs:
    """Return what the loss reads for one micro-batch. An empty one is a fully masked row."""
    width = micro.mask.shape[1]
    device = logp.device
    group = batch.group[micro.indices] if micro.indices else torch.zeros(1, dtype=torch.long)
    scores = [batch.trajectories[i].reward for i in micro.indices] or [0.0]
    extras = token_tensors.rows(micro.indices, width, device)
    extras.setdefault("proximal_logp", logp.detach())
    return LossInputs(
        logp=logp,
        entropy=entropy,
        mask=micro.mask.to(device),
        advantages=(advantages[micro.indices, :width] if micro.indices else torch.zeros(1, width)).to(device),
        behavior_logp=micro.behavior_logp.to(device),
        versions=micro.versions.to(device),
        current_version=batch.step,
        scores=torch.tensor(scores, device=device),
        group=group.to(device),
        statistics={name: value.to(device) for name, value in token_tensors.statistics.items()},
        **extras,
    )


def split_minibatches(batch: StepBatch, rows: Sequence[int], count: int) -> list[list[int]]:
    """Deal whole groups to `count` minibatches in turn; groups stay together for pairwise losses."""
    groups = sorted({int(batch.group[row]) for row in rows})
    place = {group: number % count for number, group in enumerate(groups)}
    split: list[list[int]] = [[] for _ in range(count)]
    for row in rows:
        split[place[int(batch.group[row])]].append(row)
    return [part for part in split if part]


def _totals(batch: StepBatch, rows: Sequence[int], horizon: float) -> Totals:
    return count_totals(pad_rows(batch, rows).mask, batch.group[list(rows)], horizon)
