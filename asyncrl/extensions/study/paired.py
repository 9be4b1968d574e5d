"""Whether a method differs from a baseline over seeds that both have been trained with. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from asyncrl.extensions.benchmarks.comparison import permutation_p


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """How a method differs from the baseline, seed by seed."""

    mean: float
    ci_low: float | None
    """With `ci_high` the 95 % interval of Student's t; None from a single seed."""
    ci_high: float | None
    p_value: float
    """The p-value of the sign-flip permutation test, which from n seeds is at least 2 / 2**n."""
    seeds: int
    higher: int
    """Seeds with which the method has the higher value."""
    lower: int


def paired_difference(baseline: Mapping[int, float], method: Mapping[int, float]) -> PairedDifference | None:
    """Compare values by seed; None without a seed in common."""
    seeds = sorted(baseline.keys() & method.keys())
    if not seeds:
        return None
    differences = np.array([method[seed] - baseline[seed] for seed in seeds])
    mean, low, high = mean_interval(differences.tolist())
    return PairedDifference(
        mean, low, high, permutation_p(differences), len(seeds),
        int((differences > 0).sum()), int((differences < 0).sum()),
    )  # fmt: skip


def mean_interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """Return the mean and its 95 % interval by Student's t; no interval from a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None, None
    half = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def paired_speed(
    baseline: Mapping[int, float], method: Mapping[int, float]
) -> tuple[float, float | None, float | None]:
    """Return how many times as fast a method is, as the geometric mean over the seeds that both have, and its 95 %
    interval by Student's t of the logarithms; no interval from a single seed.

    baseline, method: seconds by seed. Raises `ValueError` where they share none.
    """
    logarithms = [math.log(baseline[seed] / method[seed]) for seed in sorted(baseline.keys() & method.keys())]
    if not logarithms:
        raise ValueError("no seed has both")
    mean, low, high = mean_interval(logarithms)
    return math.exp(mean), None if low is None else math.exp(low), None if high is None else math.exp(high)
