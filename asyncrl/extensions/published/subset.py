"""Choose which finished samples, tokens or steps to train on.

Sources: D3S arXiv 2509.22115 (samples that maximise the variance of advantages; tokens by |A| · entropy),
DART-GUI (steps with the highest entropy, 80 %), XRPO (novelty). The last equation of XRPO is from the paper
only. Denominators must be counted on what is kept. Torch-free.
"""

from __future__ import annotations

import math

import numpy as np


def grown_share(share: float, version: int, full_at: int) -> float:
    """Return the share that is kept at a version: D3S's schedule grows it linearly from `share` at version 0 to all at
    `full_at`; with `full_at` 0 it stays `share`. Raises `ValueError` for a share outside (0, 1] and `full_at` below 0.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: must be above 0 and at most 1, got {share}")
    if full_at < 0:
        raise ValueError(f"full_at: must be at least 0, got {full_at}")
    return share + (1 - share) * min(1.0, version / full_at) if full_at else share


def max_variance_subset(advantages: np.ndarray, size: int) -> list[int]:
    """Sorted indices of the `size` >= 1 values with the largest variance; all when there are no more than that.

    The best subset takes the k lowest and the rest from the highest, for the best k. Ties take earlier
    positions.
    """
    values = np.asarray(advantages, dtype=np.float64)
    n = len(values)
    if size >= n:
        return list(range(n))
    ascending = np.argsort(values, kind="stable")
    descending = np.argsort(-values, kind="stable")
    # Sums of the k lowest and of the size - k highest, for every k at once.
    centred = values - values.mean()
    low, high = centred[ascending[:size]], centred[descending[:size]]
    total = _prefix_sums(low) + _prefix_sums(high)[::-1]
    squares = _prefix_sums(low**2) + _prefix_sums(high**2)[::-1]
    variances = squares / size - (total / size) ** 2
    lowest = int(np.argmax(variances > variances.max() - 1e-12))
    lows = set(ascending[:lowest].tolist())
    highs = [i for i in descending.tolist() if i not in lows][: size - lowest]
    return sorted([*lows, *highs])


def _prefix_sums(x: np.ndarray) -> np.ndarray:
    """[N + 1] sums of the first 0, 1, ... N values."""
    return np.concatenate([[0.0], np.cumsum(x)])


def top_indices(scores: np.ndarray, count: int) -> list[int]:
    """Sorted indices of the `count` largest scores; ties keep the first."""
    order = np.argsort(-np.asarray(scores), kind="stable")
    return sorted(int(i) for i in order[:count])


def high_entropy_steps(step_entropy: np.ndarray, fraction: float = 0.8) -> list[int]:
    """Sorted indices of the `ceil(fraction n)` steps with the highest entropy."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], got {fraction}")
    # The subtraction keeps 0.8 * 5 from becoming 5 by rounding up 4.000...01.
    return top_indices(step_entropy, math.ceil(fraction * len(step_entropy) - 1e-9))
