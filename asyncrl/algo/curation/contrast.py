"""Which candidates of a group are worth regenerating: the most contrastive ones.

    C candidates, sampled cheaply --rewards--> the G whose rewards vary the most --same seeds--> the group

Sol-RL (arXiv 2604.06916) takes the best and the worst in equal numbers; here it is the subset with the largest variance
(`subset.max_variance_subset`), which is the same for rewards of 0 and 1 with enough of both. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.algo.curation.subset import max_variance_subset


def has_contrast(rewards: Sequence[float]) -> bool:
    """True when two of the rewards differ."""
    return len(set(rewards)) > 1


def most_contrastive(rewards: Sequence[float], size: int) -> list[int]:
    """Return the positions of the `size` rewards that vary the most; all where there are no more than that.

    The best comes first, then the worst, the second best and so on, so that the first two differ wherever any do. Ties
    take earlier positions: of equal rewards these are the first `size`, in their order.
    """
    if not rewards:
        return []
    chosen = max_variance_subset(np.asarray(rewards), size)
    if not has_contrast(rewards):
        return chosen
    best = sorted(chosen, key=lambda i: (-rewards[i], i))
    worst = sorted(chosen, key=lambda i: (rewards[i], i))
    alternating = [position for pair in zip(best, worst, strict=True) for position in pair]
    return list(dict.fromkeys(alternating))
