"""A price of tokens by how easy the task is: the adaptive length penalty (ALP, arXiv 2506.05256). Pure, torch-free."""

from __future__ import annotations

from collections.abc import Sequence


def adaptive(
    rewards: Sequence[float], solved: Sequence[bool], tokens: Sequence[int], weight: float, longest: int
) -> list[float]:
    """Return `r - beta / N max(p, 1 / K) |y|` of each of the K episodes of one task.

    p is the share of them that is solved: tokens of a task that all solve cost most, and of one that nobody solves they
    still cost a little. weight: beta. longest: N, by which lengths are divided.
    """
    if not rewards:
        return []
    rate = max(sum(solved) / len(solved), 1 / len(solved))
    return [reward - weight / longest * rate * count for reward, count in zip(rewards, tokens, strict=True)]
