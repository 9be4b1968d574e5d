"""REINFORCE++: token returns, whitened over the whole batch; and its group-baseline form.

    G_t = r_t + gamma G_{t+1} over sampled tokens,  A = whiten(G)
    baseline form:  x_i = R_i - mean_g R,  A = whiten(x broadcast to tokens)
    whiten(x) = (x - mean) / sqrt(var + 1e-8) over all sampled tokens, unbiased variance

Source: arXiv 2501.03262. The return is carried through observation tokens without discount (current verl);
`reset_at_observations` zeroes it there, as verl did until 2026-01 and SkyRL does, so that a final reward
never reaches the turns before a tool call. A lone row of the baseline form keeps its raw reward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.groups import apply_singleton_rule, group_mean
from asyncrl.algo.ops import to_tokens, whiten


def masked_returns(
    token_rewards: Tensor, mask: Tensor, gamma: float = 1.0, reset_at_observations: bool = False
) -> Tensor:
    """[B,T] reward-to-go over sampled tokens, zero elsewhere."""
    returns = torch.zeros_like(token_rewards)
    running = torch.zeros_like(token_rewards[:, 0])
    for t in reversed(range(token_rewards.shape[1])):
        sampled = mask[:, t].bool()
        step = token_rewards[:, t] + gamma * running
        running = torch.where(sampled, step, torch.zeros_like(step) if reset_at_observations else running)
        returns[:, t] = torch.where(sampled, running, 0.0)
    return returns


def reinforce_pp(
    batch: AdvantageBatch, *, gamma: float = 1.0, reset_at_observations: bool = False, eps: float = 1e-8
) -> AdvantageOutputs:
    """[B,T] whitened token returns."""
    returns = masked_returns(batch.token_rewards(), batch.mask, gamma, reset_at_observations)
    return AdvantageOutputs(whiten(returns, batch.mask, eps), returns)


def baseline_whitened(rewards: Tensor, group: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """[B,T] group-centred rewards [B], whitened over tokens: long sequences weigh more in the moments."""
    centred = apply_singleton_rule(rewards - group_mean(rewards, group), rewards, group, "raw")
    return whiten(to_tokens(centred, mask.bool()), mask, eps)


def reinforce_pp_baseline(batch: AdvantageBatch, *, eps: float = 1e-8) -> Tensor:
    """[B,T] whitened group-centred rewards."""
    return baseline_whitened(batch.returns, batch.group, batch.mask, eps)
