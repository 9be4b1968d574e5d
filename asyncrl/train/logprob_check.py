"""Checks that the log-probabilities workers sent are those of the policy they name.

A worker sends the log-probability under which each token was sampled. For tokens of the current version, and of earlier
ones whose weights are still where the publisher wrote them (the one before, as a rule), the trainer computes the same
number itself. The two differ by rounding alone, unless the worker (or its engine) had another model, another
temperature, stale weights, or made its numbers up. Each token is compared under the version it names; tokens of
versions whose weights are no longer there are not compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asyncrl.train.auxiliary_models import whole_batch
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.earlier_policy import earlier_policy, readable
from asyncrl.train.step_batch import StepBatch, pad_rows
from asyncrl.train.step_settings import StepSettings

MIN_TOKENS = 16
"""A mean over fewer tokens proves nothing."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much a worker's log-probabilities may differ from the trainer's, in nats; 0 checks for neither."""

    max_logp_error: float = 0.25
    """Mean absolute difference of a group's compared tokens, see `train.max_logp_error`."""
    max_token_error: float = 15.0
    """The largest difference of any one token."""
    sample_tokens: int = 2048
    """Tokens compared in each step."""

    @classmethod
    def of(cls, max_logp_error: float) -> Tolerance:
        """Return the tolerance of a run; at 0 nothing is compared."""
        return cls(max_logp_error) if max_logp_error else cls(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the trainer found in one group."""

    group: str
    num_tokens: int
    error: float
    """Mean absolute difference of log-probabilities, nats."""
    worst: float
    """Largest absolute difference of one token, nats."""
    num_earlier: int = 0
    """How many of the tokens are of earlier versions."""


def compare(
    engine: TrainEngine,
    batch: StepBatch,
    tolerance: Tolerance,
    settings: StepSettings,
    weights_dir: Path | None = None,
    kept_kv: bool = False,
) -> list[Comparison]:
    """Compare a sample of the batch's tokens with the policies that sampled them. A collective; equal on every rank.

    weights_dir: where the weights of earlier versions may be found; None compares the tokens of the step's own version
    alone. kept_kv: engines keep their cache across versions, so what a turn samples after a change depends on both and
    is not compared.
    """
    if not (tolerance.max_logp_error or tolerance.max_token_error) or not tolerance.sample_tokens:
        return []
    step = batch.step
    there = {int(v) for t in batch.trajectories for v in set(t.versions[t.loss_mask].tolist())}
    earlier = readable(engine, weights_dir, there - {step})
    rows = _sample(batch, [step, *earlier], tolerance.sample_tokens)
    if not rows:
        return []
    errors = torch.full((len(batch.trajectories), max(batch.lengths)), torch.nan)
    for version in (step, *earlier):
        _measure(errors, engine, batch, rows, version, settings, weights_dir)
    if kept_kv:
        errors[rows] = errors[rows].masked_fill(_over_older_kv(batch, rows, errors.shape[1]), torch.nan)
    found = []
    for index in sorted({int(batch.group[row]) for row in rows}):
        chosen = [row for row in rows if int(batch.group[row]) == index]
        compared = ~errors[chosen].isnan()
        if not bool(compared.any()):
            continue
        values = errors[chosen][compared]
        versions = _versions(batch, chosen, errors.shape[1])
        num_earlier = int((compared & (versions < step)).sum())
        found.append(
            Comparison(
                batch.groups[index].id, len(values), float(values.mean()), float(values.max()), num_earlier
            )
        )
    return found


def comparison_metrics(found: Sequence[Comparison]) -> dict[str, float]:
    """What the metrics file holds of a batch's comparisons."""
    return {
        "trust/error": max((one.error for one in found), default=0.0),
        "trust/worst_token": max((one.worst for one in found), default=0.0),
        "trust/tokens": sum(one.num_tokens for one in found),
        "trust/earlier_tokens": sum(one.num_earlier for one in found),
    }


def _measure(
    errors: Tensor,
    engine: TrainEngine,
    batch: StepBatch,
    rows: list[int],
    version: int,
    settings: StepSettings,
    weights_dir: Path | None,
) -> None:
    """Fill in the differences [B,T] of the tokens that `version` sampled in `rows`; a NaN sent counts as infinite."""
    sampled = _versions(batch, rows, errors.shape[1]) == version
    chosen = [row for row, any_sampled in zip(rows, sampled.any(1).tolist(), strict=True) if any_sampled]
    if not chosen:
        return
    with _policy(engine, batch.step, version, weights_dir) as score:
        if score is None:
            return
        run = score
        logp = whole_batch(
            engine, batch, settings, lambda ids, mask: run(ids, mask, settings.temperature), ("logp",), chosen
        )["logp"]
    padded = pad_rows(batch, chosen)
    width = padded.mask.shape[1]
    difference = (logp[chosen, :width] - padded.behavior_logp).abs().nan_to_num(torch.inf, torch.inf)
    mine = padded.mask & (padded.versions == version)
    part = errors[chosen, :width]
    part[mine] = difference[mine]
    errors[chosen, :width] = part


def _policy(
    engine: TrainEngine, step: int, version: int, weights_dir: Path | None
) -> AbstractContextManager[Callable[..., dict[str, Tensor]] | None]:
    """Give the forward pass of a version; None where it cannot be had."""
    if version == step:
        return nullcontext(engine.outputs)
    assert weights_dir is not None
    return earlier_policy(engine, weights_dir, version)


def _versions(batch: StepBatch, rows: list[int], width: int) -> Tensor:
    """Return the version of each sampled token [B,T], -1 elsewhere."""
    padded = pad_rows(batch, rows)
    versions = torch.full((len(rows), width), -1, dtype=torch.long)
    versions[:, : padded.mask.shape[1]] = torch.where(padded.mask, padded.versions, -1)
    return versions


def _over_older_kv(batch: StepBatch, rows: list[int], width: int) -> Tensor:
    """Return where [B,T] a token was sampled by a later version than the first token of its turn."""
    found = torch.zeros((len(rows), width), dtype=torch.bool)
    for place, row in enumerate(rows):
        trajectory = batch.trajectories[row]
        for turn in trajectory.turns:
            versions = torch.as_tensor(trajectory.versions[turn.start : turn.end])
            found[place, turn.start : turn.end] = versions != versions[:1]
    return found


def disagreeing(found: Sequence[Comparison], tolerance: Tolerance) -> list[Comparison]:
    """Return the groups whose numbers cannot be those of the policy; NaN counts as a disagreement."""

    def wrong(c: Comparison) -> bool:
        on_average = (
            tolerance.max_logp_error
            and c.num_tokens >= MIN_TOKENS
            and not c.error <= tolerance.max_logp_error
        )
        return bool(on_average or (tolerance.max_token_error and not c.worst <= tolerance.max_token_error))

    return [c for c in found if wrong(c)]


def disagreement(wrong: Sequence[Comparison], step: int, tolerance: Tolerance) -> str:
    """Say why groups are rejected."""
    worst = max(wrong, key=lambda one: one.worst)
    return (
        f"log-probabilities of {len(wrong)} groups differ from the trainer's: those of group {worst.group} by "
        f"{worst.error:.3g} nats on average and {worst.worst:.3g} at most (step {step}, {worst.num_tokens} tokens); "
        f"allowed are train.max_logp_error={tolerance.max_logp_error:g} on average and "
        f"{tolerance.max_token_error:g} at one token"
    )


def _sample(batch: StepBatch, versions: Sequence[int], num_tokens: int) -> list[int]:
    """Return rows with tokens of `versions`, group by group in turn, until there are `num_tokens` of them."""
    counts = [int(np.isin(t.versions[t.loss_mask], list(versions)).sum()) for t in batch.trajectories]
    by_group: dict[int, list[int]] = {}
    for row, count in enumerate(counts):
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
            total += counts[row]
            if not by_group[index]:
                del by_group[index]
    return sorted(chosen)
