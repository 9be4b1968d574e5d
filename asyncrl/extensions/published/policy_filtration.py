"""PF-PPO: train more on the samples whose rewards can be trusted most, those at the ends of the scale.

    weight_i = G w_i / Σ_g w, how often row i is drawn, on average, in G draws from its group in proportion to w
    pow:         w = |R|^power
    max_min:     w = 1 for the best and the worst of the group, else 0     (best-worst, BW)
    max_random:  w = 0.4 for the best, 0.1 for the others                  (best-random, BR)

Source: "Policy Filtration in RLHF", arXiv 2409.06957; verl `compute_pf_ppo_reweight_data` (power 2), which draws rows
from the whole batch after advantages are known. Ours weighs advantages by the expectation of that draw, inside the
group: nothing is random. A group whose weights are all 0 stays as it is.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_range, group_size, group_sum
from asyncrl.algo.needs import group_local


@group_local
def pf_ppo(
    batch: AdvantageBatch, *, method: Literal["pow", "max_min", "max_random"] = "pow", power: float = 2.0
) -> Tensor:
    """[B] weights of the rows' advantages, 1 on average in every group."""
    rewards = batch.rewards
    low, high = group_range(rewards, batch.group)
    if method == "pow":
        weights = rewards.abs() ** power
    elif method == "max_min":
        weights = ((rewards == high) | (rewards == low)).to(rewards.dtype)
    else:
        weights = torch.where(rewards == high, 0.4, 0.1).to(rewards.dtype)
    total = group_sum(weights, batch.group)
    return torch.where(total > 0, weights * group_size(batch.group) / torch.where(total > 0, total, 1.0), 1.0)
