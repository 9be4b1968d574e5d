"""Means, intervals and pass@k over tasks with several samples each. Pure.

Samples of one task are not independent, so intervals are over task means (clustered by task). Intervals over
all samples as if independent cover far less than they say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with a confidence interval over `tasks` clusters; without one where a single task shows no spread."""

    mean: float
    ci_low: float | None
    ci_high: float | None
    tasks: int


def clustered_mean(values_by_task: Mapping[str, Sequence[float]], level: float = 0.95) -> Interval:
    """Return the mean over tasks of task means, with an interval.

    Samples that are all 0 or 1 give Wilson's interval with the effective sample size, others the t interval over
    task means (ddof 1). Raises ValueError when no task has a value.
    """
    kept = [values for values in values_by_task.values() if values]
    means = [sum(values) / len(values) for values in kept]
    n = len(means)
    if n == 0:
        raise ValueError("no task has a value to average")
    mean = math.fsum(means) / n
    if n == 1:
        return Interval(mean, None, None, n)
    if all(value in (0.0, 1.0) for values in kept for value in values):
        size = effective_size(means, sum(map(len, kept)), level)
        return Interval(mean, *wilson(mean * size, size, level), n)
    variance = math.fsum((m - mean) ** 2 for m in means) / (n - 1)
    from scipy.special import stdtrit  # not above: a launcher takes a tenth of a second to load it

    half = float(stdtrit(n - 1, 0.5 + level / 2)) * math.sqrt(variance / n)
    return Interval(mean, mean - half, mean + half, n)


def effective_size(means: Sequence[float], num_samples: int, level: float = 0.95) -> float:
    """Return how many independent samples tell as much as `num_samples` in tasks with these shares of successes.

        n / (1 - W),   W = sum_i m_i (1 - m_i) / (n + z^2) / (p (1 - p)),   p = (sum_i m_i + z^2 / 2) / (n + z^2)

    W is the part of the variance that lies within tasks: without any (each task all right or all wrong) n tasks count
    as n samples; with independent samples W is 1 - 1/samples. As in Wilson's centre, z^2 tasks are added, half all
    right and half all wrong: where nearly all tasks end alike the variance says little, and the size stays near n.
    At most `num_samples`. The design effect of cluster samples (Kish 1965), estimated with Wilson's prior.
    """
    n, z2 = len(means), NormalDist().inv_cdf(0.5 + level / 2) ** 2
    p = (math.fsum(means) + z2 / 2) / (n + z2)
    within = math.fsum(m * (1 - m) for m in means) / (n + z2) / (p * (1 - p))
    return min(float(num_samples), n / (1 - within))


def wilson(successes: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval for a proportion; an effective sample size need not be whole."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    p = successes / trials
    scale = 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate `1 - C(n-c, k) / C(n, k)` (Chen et al. 2021). Raises ValueError when n < k."""
    if num_samples < k:
        raise ValueError(f"pass@{k} needs at least {k} samples a task, got {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_hat_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate that all of k samples succeed, `C(c, k) / C(n, k)`. ValueError when n < k."""
    if num_samples < k:
        raise ValueError(f"pass^{k} needs at least {k} samples a task, got {num_samples}")
    return math.comb(num_correct, k) / math.comb(num_samples, k)
