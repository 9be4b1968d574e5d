"""The two forms of IGPO in the authors' code, which differ from the paper.

    igpo_released:             G_t = r_t + gamma G_{t+1}, zeroed at every masked token
                               A = G - position-wise group mean
    igpo_released_discounted:  gamma acts per token
                               A = (G - mean) / (std + eps) with the group's statistics of G_0

The first never carries a reward across an observation. Its group mean counts every row of the group at that
position, the masked ones as zero. See `igpo` for the paper's form and the source.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean, group_std
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import reward_to_go
from asyncrl.extensions.published.advantage.reinforce_pp import masked_returns


def positionwise(
    token_rewards: Tensor, mask: Tensor, group: Tensor, gamma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`(returns, advantages)` [B,T], no standard deviation."""
    returns = masked_returns(token_rewards, mask, gamma, reset_at_observations=True)
    means = torch.stack([group_mean(returns[:, t], group) for t in range(returns.shape[1])], 1)
    return returns, (returns - means) * mask


def first_token_statistics(
    token_rewards: Tensor, mask: Tensor, group: Tensor, gamma: float = 0.5, eps: float = 1e-6, ddof: int = 1
) -> tuple[Tensor, Tensor]:
    """`(returns, advantages)` [B,T]; the moments are those of the return at position 0."""
    returns = reward_to_go(token_rewards, gamma)
    mean = group_mean(returns[:, 0], group).unsqueeze(-1)
    std = group_std(returns[:, 0], group, ddof).unsqueeze(-1)
    return returns, (returns - mean) / (std + eps) * mask


@needs("turns")
def igpo_released(batch: AdvantageBatch, *, gamma: float = 1.0) -> Tensor:
    """[B,T] position-wise centred returns."""
    return positionwise(batch.token_rewards(), batch.mask, batch.group, gamma)[1]


@needs("turns")
def igpo_released_discounted(
    batch: AdvantageBatch, *, gamma: float = 0.5, eps: float = 1e-6, ddof: int = 1
) -> Tensor:
    """[B,T] token-discounted returns, standardised."""
    return first_token_statistics(batch.token_rewards(), batch.mask, batch.group, gamma, eps, ddof)[1]
