"""The reward for just as many tokens as were asked for: LCPO-Exact (L1, arXiv 2503.04697). Pure, torch-free."""

from __future__ import annotations


def exact(reward: float, tokens: int, target: int, alpha: float) -> float:
    """Return `r - alpha |n_gold - n_y|`.

    reward: r, 1 for a right answer in the paper. tokens: n_y, sampled. target: n_gold, asked for. alpha: 0.0003 there.
    """
    return reward - alpha * abs(target - tokens)
