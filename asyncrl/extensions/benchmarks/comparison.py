"""Whether one checkpoint is better than another, from evaluations on the same tasks. Pure.

What is compared are the means of single tasks, pair by pair: tasks differ far more from each other than checkpoints
do, so an unpaired comparison needs many times the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 9999
"""The number of resamples of bootstrap and permutations; the smallest p-value is 1 / (RESAMPLES + 1)."""
POWER = 0.8


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the second evaluation differs from the first on the tasks that both have."""

    difference: float
    """Mean over tasks of the second's mean less the first's."""
    ci_low: float
    ci_high: float
    p_value: float
    """The probability of differences at least this large, either way, if the two were alike."""
    tasks: int
    better: int
    """Tasks on which the second has the higher mean."""
    worse: int
    detectable: float
    """Difference that so many tasks of this spread would show as significant in four of five evaluations."""


def compare(
    first: Mapping[str, Sequence[float]],
    second: Mapping[str, Sequence[float]],
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare values by task, pair by pair, on the tasks that both have.

    The interval is the BCa bootstrap over tasks (Efron 1987), the p-value that of the permutation test that swaps the
    two evaluations of a task (exact up to 13 tasks). Raises ValueError for fewer than two tasks in common.
    """
    from scipy import stats  # not above: it takes a second to load

    shared = [task for task in first if first[task] and second.get(task)]
    if len(shared) < 2:
        raise ValueError(f"a comparison needs two tasks that both evaluations have, got {len(shared)}")
    means = np.array([[np.mean(values[task]) for task in shared] for values in (first, second)])
    differences = means[1] - means[0]
    mean, tasks = float(differences.mean()), len(shared)
    spread = float(differences.std(ddof=1))
    if spread == 0.0:
        # Every task differs alike: no resample differs, and only the permutation says whether that may be chance.
        low = high = mean
    else:
        found = stats.bootstrap(
            (differences,), np.mean, confidence_level=level, n_resamples=RESAMPLES, method="BCa",
            rng=np.random.default_rng(seed),
        ).confidence_interval  # fmt: skip
        low, high = float(found.low), float(found.high)
    quantiles = stats.t.ppf([0.5 + level / 2, POWER], tasks - 1)
    return Comparison(
        difference=mean,
        ci_low=low,
        ci_high=high,
        p_value=permutation_p(differences, seed),
        tasks=tasks,
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        detectable=float(quantiles.sum() * spread / np.sqrt(tasks)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being several (Holm 1979): reject those at most `1 - level`."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return [float(p) for p in adjusted]


def permutation_p(differences: np.ndarray, seed: int = 0) -> float:
    """Return how often differences at least as large on average, either way, come of swapping the two sides of a pair
    (exact up to 13 pairs); 1 for a single pair."""
    from scipy import stats

    if len(differences) < 2 or not differences.any():
        return 1.0
    found = stats.permutation_test(
        (differences, np.zeros_like(differences)), lambda a, b, axis: (a - b).mean(axis=axis),
        permutation_type="samples", vectorized=True, n_resamples=RESAMPLES, rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(found.pvalue)
