"""GRPO: rewards standardised inside the prompt's group.

    A_i = (R_i - mean_g R) / (std_g R + eps), the same for every sampled token

Source: DeepSeekMath, arXiv 2402.03300. Implementations differ, so everything is a parameter:

| variant | mean | std | ddof | eps | singleton |
|---|---|---|---|---|---|
| ours, and verl apart from the singleton | group | group | 1 | 1e-6 | zero (verl: raw) |
| TRL | group | group or batch | 1 | 1e-4 | zero |
| open-instruct | group | group | 0 | 1e-8 | zero |
| PipelineRL | leave_one_out | group | 1 | 1e-4 | zero |
| NeMo-RL | leave_one_out | leave_one_out | 1 | 1e-6 | zero |

A leave-one-out standard deviation of zero divides by nothing (NeMo-RL).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import (
    apply_singleton_rule,
    dense,
    group_mean,
    group_size,
    group_std,
    leave_one_out_deviation,
)
from asyncrl.algo.needs import compares_episodes, group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


def grpo_scores(
    rewards: Tensor,
    group: Tensor,
    ddof: int = 1,
    eps: float = 1e-6,
    mean: str = "group",
    std: str = "group",
    singleton: str = "zero",
) -> Tensor:
    """[B] advantages of [B] rewards.

    With singleton "raw" a lone row gets `R / (1 + eps)`, or R without std.
    """
    if mean == "group":
        deviation = rewards - group_mean(rewards, group)
    elif mean == "leave_one_out":
        deviation = leave_one_out_deviation(rewards, group)
    else:
        raise ValueError(f"mean must be 'group' or 'leave_one_out', got {mean!r}")
    if std == "none":
        return apply_singleton_rule(deviation, rewards, group, singleton)
    if std == "group":
        scale = group_std(rewards, group, ddof) + eps
    elif std == "batch":
        scale = rewards.std(correction=ddof) + eps if rewards.numel() > ddof else torch.ones_like(rewards)
    elif std == "leave_one_out":
        others = leave_one_out_std(rewards, group, ddof)
        scale = torch.where(others > 0, others + eps, 1.0)
    else:
        raise ValueError(f"std must be 'group', 'batch', 'leave_one_out' or 'none', got {std!r}")
    return apply_singleton_rule(deviation / scale, rewards / (1 + eps), group, singleton)


def leave_one_out_std(x: Tensor, group: Tensor, ddof: int = 1) -> Tensor:
    """[B] standard deviation of the other members of the group; 0 where fewer than `ddof + 1` others."""
    result = torch.zeros_like(x)
    g = dense(group)
    size = group_size(group)
    for index in g[size > ddof + 1].unique():
        rows = (g == index).nonzero().squeeze(-1)
        n = len(rows)
        others = x[rows].expand(n, n)[~torch.eye(n, dtype=torch.bool, device=x.device)].view(n, n - 1)
        low, high = others.amin(1), others.amax(1)
        mean = torch.minimum(torch.maximum(others.mean(1), low), high)
        result[rows] = (((others - mean[:, None]) ** 2).sum(1) / (n - 1 - ddof)).sqrt()
    return result


@compares_episodes
@group_local(std=("group", "leave_one_out", "none"))
@zero_where_equal("rewards")
def grpo(
    batch: AdvantageBatch,
    *,
    ddof: int = 1,
    eps: float = 1e-6,
    mean: Literal["group", "leave_one_out"] = "group",
    std: Literal["group", "batch", "leave_one_out", "none"] = "group",
    singleton: Literal["zero", "raw"] = "zero",
) -> Tensor:
    """[B,T] GRPO advantages."""
    scores = grpo_scores(batch.returns, batch.group, ddof, eps, mean, std, singleton)
    return to_tokens(scores, batch.mask)
