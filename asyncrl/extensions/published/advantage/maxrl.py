"""MaxRL: the relative deviation from the group's mean reward.

    A_i = (R_i - mean_g R) / (mean_g R + eps),  0 where the mean is not positive

Source: prime-rl (eps 0, zero rule), SkyRL (eps 1e-6). Meant for rewards that are not negative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean
from asyncrl.algo.needs import compares_episodes, group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


def maxrl_scores(rewards: Tensor, group: Tensor, eps: float = 0.0) -> Tensor:
    """[B] advantages."""
    mean = group_mean(rewards, group)
    scale = torch.where(mean > 0, mean + eps, 1.0)
    return torch.where(mean > 0, (rewards - mean) / scale, 0.0)


@compares_episodes
@group_local
@zero_where_equal("rewards")
def maxrl(batch: AdvantageBatch, *, eps: float = 0.0) -> Tensor:
    """[B,T] MaxRL advantages."""
    return to_tokens(maxrl_scores(batch.returns, batch.group, eps), batch.mask)
