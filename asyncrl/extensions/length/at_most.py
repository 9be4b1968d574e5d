"""The reward for so many tokens at most: LCPO-Max (L1, arXiv 2503.04697). Pure, torch-free."""

from __future__ import annotations


def at_most(reward: float, tokens: int, target: int, alpha: float, delta: float) -> float:
    """Return `r clip(alpha (n_gold - n_y) + delta, 0, 1)`.

    reward: r, 1 for a right answer in the paper. tokens: n_y, sampled. target: n_gold, asked for. alpha, delta: 0.0003
    and 0.5 there: a right answer that is a little too long is still better than a wrong one.
    """
    return reward * min(1.0, max(0.0, alpha * (target - tokens) + delta))
