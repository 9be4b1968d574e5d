"""Whether what workers sent came from the policy they name.

A worker sends the log-probability under which each token was sampled. For tokens of the current version the trainer
can compute the same number itself; the two differ by rounding alone, unless the worker (or its engine) had another
model, another temperature, stale weights, or made its numbers up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.config import TrustConfig
from asyncrl.train.anchors import whole_batch
from asyncrl.train.batch import StepBatch, build_step_batch, pad_rows
from asyncrl.train.engine import TrainEngine
from asyncrl.types import Group

MIN_TOKENS = 16
"""A group with fewer tokens of the current version proves nothing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the trainer found in one group."""

    group: str
    num_tokens: int
    error: float
    """Mean absolute difference of log-probabilities, nats."""


def compare(
    engine: TrainEngine,
    groups: Sequence[Group],
    step: int,
    max_staleness: int,
    trust: TrustConfig,
    settings: Any,
) -> list[Comparison]:
    """Compare a sample of the groups' tokens that version `step` sampled. A collective; equal on every rank."""
    if not trust.max_logp_error or not trust.sample_tokens:
        return []
    batch = build_step_batch(groups, step, max_staleness)
    rows = _sample(batch, trust.sample_tokens)
    if not rows:
        return []
    logp = whole_batch(
        engine, batch, settings,
        lambda ids, mask: engine.outputs(ids, mask, settings.temperature), ("logp",), rows,
    )["logp"]  # fmt: skip
    ordered = sorted(groups, key=lambda group: group.task.id)
    found = []
    for index in sorted({int(batch.group[row]) for row in rows}):
        chosen = [row for row in rows if int(batch.group[row]) == index]
        padded = pad_rows(batch, chosen)
        fresh = padded.mask & (padded.versions == step)
        width = fresh.shape[1]
        error = (logp[chosen, :width] - padded.behavior_logp).abs()[fresh]
        found.append(Comparison(ordered[index].id, int(fresh.sum()), float(error.mean())))
    return found


def refuted(found: Sequence[Comparison], trust: TrustConfig) -> list[Comparison]:
    """Return the groups whose numbers cannot be those of the policy. NaN counts as wrong."""
    return [c for c in found if c.num_tokens >= MIN_TOKENS and not c.error <= trust.max_logp_error]


def _sample(batch: StepBatch, num_tokens: int) -> list[int]:
    """Return rows with fresh tokens, group by group in turn, until there are `num_tokens` of them."""
    fresh = [int((t.versions[t.loss_mask] == batch.step).sum()) for t in batch.trajectories]
    by_group: dict[int, list[int]] = {}
    for row, count in enumerate(fresh):
        if count:
            by_group.setdefault(int(batch.group[row]), []).append(row)
    # The same draw on every rank.
    rng = random.Random(batch.step)
    for rows in by_group.values():
        rng.shuffle(rows)
    chosen: list[int] = []
    total = 0
    while by_group and total < num_tokens:
        for index in list(by_group):
            row = by_group[index].pop()
            chosen.append(row)
            total += fresh[row]
            if not by_group[index]:
                del by_group[index]
    return sorted(chosen)
