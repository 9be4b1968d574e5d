"""A Beta belief about each prompt's pass rate, and what one more rollout of it would teach.

    alpha <- decay alpha + successes,  beta <- decay beta + failures

Sources: InSight arXiv 2603.01907 (decay 1, mean belief) and VADE arXiv 2511.18902 (decay < 1, Thompson
samples); both from the papers. Start unseen prompts at (1, 1). Torch-free.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

Counts = TypeVar("Counts", float, np.ndarray)
"""alpha or beta, of one prompt or [N] of several."""


def update(
    alpha: float, beta: float, successes: float, failures: float, decay: float = 1.0, floor: float = 1e-6
) -> tuple[float, float]:
    """Next `(alpha, beta)`, never below `floor`."""
    return max(decay * alpha + successes, floor), max(decay * beta + failures, floor)


def fade(count: Counts, factor: float) -> Counts:
    """Return alpha or beta with its evidence, what exceeds the prior of 1, multiplied by `factor`."""
    return 1 + factor * (count - 1)


def moments(alpha: float, beta: float) -> tuple[float, float]:
    """Mean and variance of the belief."""
    total = alpha + beta
    return alpha / total, alpha * beta / (total**2 * (total + 1))


def mutual_information(alpha: Counts, beta: Counts, rollouts: int = 1) -> Counts:
    """Nats that the outcomes of M rollouts reveal about the pass rate: `H(outcomes) - M E[H(p)]`."""
    from scipy.special import betaln  # not above: all commands load this module

    log_norm = betaln(alpha, beta)
    entropy = 0.0 * alpha
    for k in range(rollouts + 1):
        log_p = betaln(alpha + k, beta + rollouts - k) - log_norm
        entropy -= math.comb(rollouts, k) * np.exp(log_p) * log_p
    return entropy - rollouts * expected_entropy(alpha, beta)


def expected_entropy(alpha: Counts, beta: Counts) -> Counts:
    """`E[H(p)]` in nats of a Bernoulli outcome under the belief, in closed form."""
    from scipy.special import digamma

    mean = alpha / (alpha + beta)
    top = digamma(alpha + beta + 1)
    return top - mean * digamma(alpha + 1) - (1 - mean) * digamma(beta + 1)


def information_score(pass_rate: np.ndarray) -> np.ndarray:
    """[N] VADE's `p (1 - p)²` of a Thompson sample p: highest at one third. Take the top prompts."""
    p = np.asarray(pass_rate, dtype=np.float64)
    return p * (1 - p) ** 2


def thompson_scores(alpha: np.ndarray, beta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[N] `information_score` of one draw from each belief."""
    return information_score(rng.beta(alpha, beta))
