"""Pass@k GRPO: only the best sample of a group learns, by its margin over the second best.

    A_best = (R_(1) - R_(2)) / (std_g R + eps),  all others 0

Source: verl `grpo_passk` (ddof 1, eps 1e-6). Groups of one get 0. Among ties the first is best, with margin
0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import dense, group_std
from asyncrl.algo.needs import compares_episodes, group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


def passk_scores(
    rewards: Tensor, group: Tensor, std: bool = True, eps: float = 1e-6, ddof: int = 1
) -> Tensor:
    """[B] advantages; `std` False leaves the margin unscaled."""
    scores = torch.zeros_like(rewards)
    g = dense(group)
    scale = group_std(rewards, group, ddof) + eps if std else torch.ones_like(rewards)
    for index in g.unique():
        rows = (g == index).nonzero().squeeze(-1)
        if len(rows) > 1:
            best = rows[rewards[rows].argmax()]
            top = rewards[rows].topk(2).values
            scores[best] = (top[0] - top[1]) / scale[best]
    return scores


@compares_episodes
@group_local
@zero_where_equal("rewards")
def passk(batch: AdvantageBatch, *, std: bool = True, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """[B,T] pass@k advantages."""
    return to_tokens(passk_scores(batch.returns, batch.group, std, eps, ddof), batch.mask)
