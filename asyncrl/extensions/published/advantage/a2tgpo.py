"""A2TGPO: information gain compared turn by turn, accumulated at one scale, and wide trust regions where it is large.

    z_k = (gain_k - mean) / (std + eps)  among the same turn k of the prompt's rollouts
    D_k = Σ_{j >= k} gamma^{j-k} z_j / sqrt(n - k)  over the n turns before the last
    A_k = alpha D_k + A^outcome before the last turn, A^outcome on the last;  A^outcome: z-score of the prompt's rewards
    clip scale c_k = 1 + beta (2 σ(z_k) - 1), 1 on the last turn: the loss clips at 1 - c eps_low and 1 + c eps_high

Source: arXiv 2605.06200 and its code (`turn-group-v1d`: gamma 1, alpha 0.3, beta 0.3), whose loss is that of ATPO. The
gains are those of `igpo`. A turn that no other rollout reached has z 0. ddof 1 and eps 1e-6 are as in `grpo`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage.steps import step_returns, step_rows, steps_to_tokens
from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.groups import group_index, group_mean, group_std
from asyncrl.algo.needs import group_local, needs
from asyncrl.extensions.published.advantage.igpo import gain_rewards


def rescaled_returns(z: Tensor, traj: Tensor, left: Tensor, gamma: float) -> Tensor:
    """[N] discounted sums of `z` over the rest of each trajectory, by the root of how many terms, `left` [N]."""
    return step_returns(z, traj, gamma) / left.clamp(min=1).sqrt()


def clip_scales(z: Tensor, beta: float) -> Tensor:
    """[N] factor on the width of a turn's trust region, between 1 - beta and 1 + beta."""
    return 1 + beta * (2 * torch.sigmoid(z) - 1)


@needs("turns", "answers")
@group_local
def a2tgpo(
    batch: AdvantageBatch,
    *,
    gamma: float = 1.0,
    alpha: float = 0.3,
    beta: float = 0.3,
    eps: float = 1e-6,
    ddof: int = 1,
) -> AdvantageOutputs:
    """[B,T] A2TGPO advantages, with the scale of each token's trust region."""
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta}")
    rewards = gain_rewards(batch)
    rows = step_rows(batch, rewards)
    last = torch.tensor([len(turns) - 1 for turns in rewards], device=rows.traj.device)[rows.traj]
    gain = rows.index < last
    keys = zip(rows.prompt.tolist(), rows.index.tolist(), gain.tolist(), strict=True)
    group = group_index(list(keys), rows.prompt.device)
    z = (rows.reward - group_mean(rows.reward, group)) / (group_std(rows.reward, group, ddof) + eps)
    z = torch.where(gain, z, 0.0)
    outcome = grpo_scores(batch.returns, batch.group, ddof, eps)[rows.traj]
    left = (last - rows.index).to(z.dtype)
    advantage = outcome + torch.where(gain, alpha * rescaled_returns(z, rows.traj, left, gamma), 0.0)
    # Off the sampled tokens the scale is not read.
    scale = steps_to_tokens(torch.where(gain, clip_scales(z, beta), 1.0), rows, batch)
    return AdvantageOutputs(steps_to_tokens(advantage, rows, batch), clip_scale=scale)
