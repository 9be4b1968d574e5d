"""Checks that sampled tokens came from the hidden states of the policy they name, by the engine's commitments.

The log-probability check computes the states of a sample of tokens anyway, each under the version that it names. A
commitment is compared where all its tokens were computed: a chunk that spans a change of weights under both versions,
one with a token of a version whose weights are gone not at all. A group may hold no trajectory without commitments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncrl.extensions.commitments.commitment import COMMITMENTS, Difference, difference, tokens_of
from asyncrl.train.features.logprob_check import Computed
from asyncrl.train.step.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class Finding:
    """What the trainer found of one group's commitments: the worst of each measure, see `Difference`."""

    group: str
    num_checked: int
    num_missing: int
    """Trajectories without any."""
    exponents: float = 0.0
    mantissa_mean: float = 0.0
    mantissa_median: float = 0.0


ALLOWED = {
    "float32": Difference(exponents=0.1, mantissa_mean=0.5, mantissa_median=0.0),
    "bfloat16": Difference(exponents=90 / 128, mantissa_mean=10.0, mantissa_median=8.0),
}
"""The most that rounding does to one commitment, by `model.dtype`: for float32 as measured here
(docs/benchmarks/trainer.md#commitments), for bfloat16 the paper's, which allow 90 of 128 exponents and were not tried
here."""


def examine(batch: StepBatch, states: Computed) -> list[tuple[str, int, int, float, float, float]]:
    """Return the fields of a `Finding` for each group with something to say. On the first rank.

    states: by row those [S,H] before its sampled tokens, NaN where they were not computed.
    """
    checked: dict[int, list[Difference]] = {}
    missing: dict[int, int] = {}
    for row in batch.fresh_rows:
        group, t = int(batch.group[row]), batch.trajectories[row]
        if COMMITMENTS not in t.extras:
            missing[group] = missing.get(group, 0) + 1
        elif row in states:
            checked.setdefault(group, []).extend(differences(t.extras[COMMITMENTS], states[row]))
    found: list[tuple[str, int, int, float, float, float]] = []
    for group in sorted(checked.keys() | missing.keys()):
        of_group = checked.get(group, [])
        found.append(
            (
                batch.group_ids[group],
                len(of_group),
                missing.get(group, 0),
                max((one.exponents for one in of_group), default=0.0),
                max((one.mantissa_mean for one in of_group), default=0.0),
                max((one.mantissa_median for one in of_group), default=0.0),
            )
        )
    return found


def differences(commitments: Sequence[bytes], states: np.ndarray) -> list[Difference]:
    """Compare the commitments of a trajectory's sampled tokens with `states` [S,H], as far as these are known."""
    found, start = [], 0
    for commitment in commitments:
        mine = states[start : start + tokens_of(commitment)]
        start += tokens_of(commitment)
        if not np.isnan(mine).any():
            found.append(difference(commitment, mine))
    return found


def unfit(found: Sequence[Finding], allowed: Difference) -> list[Finding]:
    """Return the groups that were not sampled from the policy's states, and those that do not show it."""
    return [
        one
        for one in found
        if one.num_missing
        or one.exponents > allowed.exponents
        or one.mantissa_mean > allowed.mantissa_mean
        or one.mantissa_median > allowed.mantissa_median
    ]


def unfit_reason(wrong: Sequence[Finding], step: int, allowed: Difference) -> str:
    """Say why groups are rejected."""
    worst = max(wrong, key=lambda one: (one.exponents, one.mantissa_mean))
    if not unfit([Finding(worst.group, 0, 0, *_measures(worst))], allowed):
        return (
            f"{len(wrong)} groups have trajectories without commitments, group {worst.group} for instance (step "
            f"{step}); engines make them with train.commitments=true"
        )
    return (
        f"commitments of {len(wrong)} groups do not fit the trainer's hidden states: of group {worst.group} up to "
        f"{worst.exponents:.0%} of the exponents differ, mantissas by {worst.mantissa_mean:.3g} on average "
        f"(step {step}, {worst.num_checked} commitments); allowed are {allowed.exponents:.0%} and "
        f"{allowed.mantissa_mean:g} (train.commitments)"
    )


def commitment_metrics(found: Sequence[Finding]) -> dict[str, float]:
    """What the metrics file holds of a batch's commitments; nothing where none were looked for."""
    if not found:
        return {}
    return {
        "commitment_check/checked": sum(one.num_checked for one in found),
        "commitment_check/exponents": max(one.exponents for one in found),
        "commitment_check/mantissa_mean": max(one.mantissa_mean for one in found),
        "commitment_check/mantissa_median": max(one.mantissa_median for one in found),
    }


def _measures(one: Finding) -> tuple[float, float, float]:
    return one.exponents, one.mantissa_mean, one.mantissa_median
