"""Checks that the log-probabilities workers sent are those of the policy they name.

A worker sends the log-probability under which each token was sampled. For tokens of the current version, and of earlier
ones whose weights are still where the publisher wrote them (the one before, as a rule), the trainer computes the same
number itself. The two differ by rounding alone, unless the worker (or its engine) had another model, another
temperature, stale weights, or made its numbers up. Each token is compared under the version it names; tokens of
versions whose weights are no longer there are not compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.earlier_policy import earlier_policy, readable
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.whole_batch import rows_by_version, whole_batch
from asyncrl.types import Trajectory

Computed = dict[int, np.ndarray]
"""By row, an output [S,C] float32 of the forward pass for its sampled tokens; NaN where it was not computed."""
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
    """Tokens compared in each step, at most."""
    least_tokens: int = 1024
    """A batch that has no more tokens is compared whole."""
    group_tokens: int = 64
    """About so many tokens of each group of a larger batch are compared. One token that is off by as much as a token
    may be does not then bring the mean of its group above the default limit."""

    def wanted(self, num_groups: int) -> int:
        """Return how many tokens of a batch are to be compared."""
        return min(self.sample_tokens, max(self.least_tokens, self.group_tokens * num_groups))

    @classmethod
    def of(cls, max_logp_error: float) -> Tolerance:
        """Return the tolerance of a run; at 0 nothing is compared."""
        return cls(max_logp_error) if max_logp_error else cls(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the trainer found in one group, or in those of its tokens that one engine sampled."""

    group: str
    num_tokens: int
    error: float
    """Mean absolute difference of log-probabilities, nats."""
    worst: float
    """Largest absolute difference of one token, nats."""
    num_earlier: int = 0
    """How many of the tokens are of earlier versions."""
    engine: str = ""
    """The engine of the tokens; "" where it is not known, and of a whole group."""

    def with_tokens(self, other: Comparison) -> Comparison:
        """Return this over the tokens of both."""
        total = self.num_tokens + other.num_tokens
        error = (self.error * self.num_tokens + other.error * other.num_tokens) / total
        return replace(
            self,
            num_tokens=total,
            error=error,
            # Not `max`, whose result with NaN depends on the order.
            worst=float(np.maximum(self.worst, other.worst)),
            num_earlier=self.num_earlier + other.num_earlier,
        )


def of_groups(parts: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of whole groups, in the order of their first parts."""
    found: dict[str, Comparison] = {}
    for part in parts:
        whole = replace(part, engine="")
        found[part.group] = found[part.group].with_tokens(whole) if part.group in found else whole
    return list(found.values())


def compare(
    engine: TrainEngine,
    batch: StepBatch,
    tolerance: Tolerance,
    settings: StepSettings,
    weights_dir: Path | None = None,
    kept_kv: bool = False,
    outputs: Mapping[str, Computed] | None = None,
) -> list[Comparison]:
    """Compare a sample of the batch's tokens with the policies that sampled them. A collective; equal on every rank.

    Return a comparison for each group and engine that sampled some of its tokens.

    weights_dir: where the weights of earlier versions may be found; None compares the tokens of the step's own version
    alone. kept_kv: engines keep their cache across versions, so what a turn samples after a change depends on both and
    is not compared. outputs: what else to compute of the compared tokens, by names of `TrainEngine.outputs`; filled on
    the first rank.
    """
    if not (tolerance.max_logp_error or tolerance.max_token_error) or not tolerance.sample_tokens:
        return []
    step = batch.step
    there = engine.on_first(lambda: [version for version, _ in rows_by_version(batch)])
    earlier = readable(engine, weights_dir, set(there) - {step})
    chosen = engine.on_first(lambda: _sample(batch, [step, *earlier], tolerance))
    errors = Ragged.full(batch.counts, torch.nan)
    for version, rows in chosen:
        with _policy(engine, step, version, weights_dir) as score:
            if score is not None:
                _measure(errors, engine, batch, rows, version, settings, score, outputs or {})
    found = engine.on_first(lambda: _comparisons(batch, errors, kept_kv))
    return [Comparison(*one) for one in found]


def _comparisons(batch: StepBatch, errors: Ragged, kept_kv: bool) -> list[tuple[Any, ...]]:
    """Return the fields of a `Comparison` for each group of which tokens were compared, and each engine that sampled
    some of them. On the first rank."""
    by_group: dict[tuple[int, str], list[tuple[Tensor, int]]] = {}
    for row, t in enumerate(batch.trajectories):
        values = errors.row(row)
        if kept_kv:
            values = values.masked_fill(torch.from_numpy(_over_older_kv(t)[t.loss_mask]), torch.nan)
        known = ~values.isnan()
        if not bool(known.any()):
            continue
        earlier = torch.tensor(t.versions[t.loss_mask]) < batch.step
        for engine, sampled in _by_engine(t):
            compared = known & torch.from_numpy(sampled)
            if bool(compared.any()):
                num_earlier = int((compared & earlier).sum())
                key = int(batch.group[row]), engine
                by_group.setdefault(key, []).append((values[compared], num_earlier))
    found = []
    for (index, engine), parts in sorted(by_group.items()):
        values = torch.cat([part for part, _ in parts])
        num_earlier = sum(number for _, number in parts)
        group = batch.group_ids[index]
        found.append((group, len(values), float(values.mean()), float(values.max()), num_earlier, engine))
    return found


def _by_engine(t: Trajectory) -> list[tuple[str, np.ndarray]]:
    """Return each engine that sampled tokens of a trajectory, and which of its sampled tokens these are."""
    places = np.flatnonzero(t.loss_mask)
    if len(t.engines) < 2:
        return [(t.engines[0] if t.engines else "", np.ones(len(places), np.bool_))]
    found: dict[str, np.ndarray] = {}
    for turn, engine in zip(t.turns, t.engines, strict=True):
        own = (places >= turn.start) & (places < turn.end)
        found[engine] = found.get(engine, False) | own
    return list(found.items())


def comparison_metrics(found: Sequence[Comparison]) -> dict[str, float]:
    """What the metrics file holds of a batch's comparisons."""
    return {
        "logprob_check/error": max((one.error for one in found), default=0.0),
        "logprob_check/worst_token": max((one.worst for one in found), default=0.0),
        "logprob_check/tokens": sum(one.num_tokens for one in found),
        "logprob_check/earlier_tokens": sum(one.num_earlier for one in found),
    }


def _measure(
    errors: Ragged,
    engine: TrainEngine,
    batch: StepBatch,
    rows: list[int],
    version: int,
    settings: StepSettings,
    score: Callable[..., dict[str, Tensor]],
    outputs: Mapping[str, Computed],
) -> None:
    """Fill in the differences, and the outputs, of the tokens that `version` sampled in `rows`; a NaN sent counts as
    infinite."""
    names = ("logp", *outputs)
    found = whole_batch(
        engine, batch, settings,
        lambda some: score(some.token_ids, some.mask, settings.temperature, names, extras=some.extras),
        names, rows,
    )  # fmt: skip
    logp = found["logp"]
    for row in rows if engine.rank == 0 else ():
        t = batch.row(row)
        sent = torch.tensor(t.behavior_logprobs[t.loss_mask])
        difference = (logp.row(row) - sent).abs().nan_to_num(torch.inf, torch.inf)
        mine = torch.from_numpy(t.versions[t.loss_mask] == version)
        errors.row(row)[mine] = difference[mine]
        for name, filled in outputs.items():
            computed = found[name].row(row).view(len(mine), -1).numpy()
            filled.setdefault(row, np.full_like(computed, np.nan))[mine] = computed[mine]


def _policy(
    engine: TrainEngine, step: int, version: int, weights_dir: Path | None
) -> AbstractContextManager[Callable[..., dict[str, Tensor]] | None]:
    """Give the forward pass of a version; None where it cannot be had."""
    if version == step:
        return nullcontext(engine.outputs)
    assert weights_dir is not None
    return earlier_policy(engine, weights_dir, version)


def _over_older_kv(t: Trajectory) -> np.ndarray:
    """Return where [L] a token was sampled by a later version than the first of its turn that was sampled."""
    found = np.zeros(t.num_tokens, np.bool_)
    for turn in t.turns:
        versions, sampled = t.versions[turn.start : turn.end], t.loss_mask[turn.start : turn.end]
        found[turn.start : turn.end] = sampled & (versions != versions[sampled][:1])
    return found


def disagreeing(found: Sequence[Comparison], tolerance: Tolerance) -> list[Comparison]:
    """Return the groups whose numbers cannot be those of the policy; NaN counts as a disagreement."""
    return [c for c in found if is_wrong(c, tolerance)]


def is_wrong(c: Comparison, tolerance: Tolerance) -> bool:
    """True where the numbers cannot be those of the policy."""
    on_average = (
        tolerance.max_logp_error and c.num_tokens >= MIN_TOKENS and not c.error <= tolerance.max_logp_error
    )
    return bool(on_average or (tolerance.max_token_error and not c.worst <= tolerance.max_token_error))


def disagreement(wrong: Sequence[Comparison], step: int, tolerance: Tolerance) -> str:
    """Say why groups are rejected."""
    worst = max(wrong, key=lambda one: one.worst)
    return (
        f"log-probabilities of {len(wrong)} groups differ from the trainer's: those of group {worst.group} by "
        f"{worst.error:.3g} nats on average and {worst.worst:.3g} at most (step {step}, {worst.num_tokens} tokens); "
        f"allowed are train.max_logp_error={tolerance.max_logp_error:g} on average and "
        f"{tolerance.max_token_error:g} at one token"
    )


def _sample(batch: StepBatch, versions: Sequence[int], tolerance: Tolerance) -> list[tuple[int, list[int]]]:
    """Return rows with tokens of `versions`, by version, until there are as many of these as are to be compared.

    Rows are drawn group by group in turn. What is trained again was compared when it was fresh.
    """
    counts: dict[int, int] = {}
    by_group: dict[int, list[int]] = {}
    for row in batch.fresh_rows:
        t = batch.trajectories[row]
        counts[row] = int(np.isin(t.versions[t.loss_mask], list(versions)).sum())
        if counts[row]:
            by_group.setdefault(int(batch.group[row]), []).append(row)
    rng = random.Random(batch.step)
    for rows in by_group.values():
        rng.shuffle(rows)
    drawn: set[int] = set()
    total, wanted = 0, tolerance.wanted(len(by_group))
    while by_group and total < wanted:
        for index in list(by_group):
            row = by_group[index].pop()
            drawn.add(row)
            total += counts[row]
            if not by_group[index]:
                del by_group[index]
    of_version = {version: sorted(drawn.intersection(rows)) for version, rows in rows_by_version(batch)}
    return [(version, of_version[version]) for version in versions if of_version.get(version)]
