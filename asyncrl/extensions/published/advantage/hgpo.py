"""HGPO: compare steps at every length of shared history, and trust longer matches more.

    level k = 1..K+1: steps of a prompt grouped by their last k observations (steps with fewer skip the level)
    a_k = (return - mean) / (std + eps) in groups of two or more, or centred only
    A = Σ_k w_k a_k,  w_k = (k + 1)^alpha / (Σ (k + 1)^alpha + 1e-6), over the levels with a_k != 0

Source: recipe/hgpo of verl-agent (K = `history_length`, alpha 1, ddof 0, eps 1e-6). An exactly zero a_k
counts as missing, so its weight goes to the other levels, as in the code. `base_group` adds the trajectory
advantage as level 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage.steps import (
    centred_in_groups,
    episode_advantage,
    step_returns,
    step_rows,
    steps_to_tokens,
)
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_index, group_size
from asyncrl.algo.needs import group_local, needs, zero_where_equal
from asyncrl.extensions.published.advantage.gigpo import flat_observations


def histories(
    prompt: Tensor, traj: Tensor, observations: Sequence[str], length: int
) -> list[Hashable | None]:
    """Per step the prompt and its last `length` observations, None where the trajectory is younger."""
    seen: dict[int, list[str]] = {}
    keys: list[Hashable | None] = []
    for p, t, observation in zip(prompt.tolist(), traj.tolist(), observations, strict=True):
        past = seen.setdefault(t, [])
        past.append(observation)
        keys.append((p, *past[-length:]) if len(past) >= length else None)
    return keys


def level_advantage(
    returns: Tensor, keys: Sequence[Hashable | None], std: bool, ddof: int, eps: float
) -> Tensor:
    """[N] deviation inside the groups of equal keys; 0 where there is no key or no partner."""
    present = torch.tensor([key is not None for key in keys], dtype=torch.bool, device=returns.device)
    groups = group_index([key if key is not None else ("alone", i) for i, key in enumerate(keys)])
    groups = groups.to(returns.device)
    centred = centred_in_groups(returns, groups, std, ddof, eps)
    return torch.where(present & (group_size(groups) > 1), centred, 0.0)


def combine_levels(levels: Sequence[Tensor], first_level: int, alpha: float, eps: float = 1e-6) -> Tensor:
    """[N] weighted mean over the levels that are not exactly zero."""
    stacked = torch.stack(list(levels))
    ranks = torch.arange(first_level, first_level + len(levels), dtype=stacked.dtype, device=stacked.device)
    weights = ((ranks + 1) ** alpha).unsqueeze(-1) * (stacked != 0)
    return (weights / (weights.sum(0) + eps) * stacked).sum(0)


def history_levels(
    step_return: Tensor,
    prompt: Tensor,
    traj: Tensor,
    observations: Sequence[str],
    history_length: int = 2,
    std: bool = True,
    ddof: int = 0,
    eps: float = 1e-6,
) -> list[Tensor]:
    """The advantages [N] of levels 1 to `history_length + 1`."""
    return [
        level_advantage(step_return, histories(prompt, traj, observations, k), std, ddof, eps)
        for k in range(1, history_length + 2)
    ]


@needs("turns", "observations")
@group_local
@zero_where_equal("rewards", "steps")
def hgpo(
    batch: AdvantageBatch,
    *,
    history_length: int = 2,
    alpha: float = 1.0,
    gamma: float = 0.95,
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_std_norm",
    base_group: bool = False,
    ddof: int = 0,
    eps: float = 1e-6,
) -> Tensor:
    """[B,T] HGPO advantages."""
    rows, std = step_rows(batch), mode == "mean_std_norm"
    returns = step_returns(rows.reward, rows.traj, gamma)
    levels = history_levels(
        returns, rows.prompt, rows.traj, flat_observations(batch), history_length, std, ddof, eps
    )
    if base_group:
        episode = episode_advantage(rows.episode_reward, rows.prompt, rows.traj, std, True, ddof, eps)
        levels.insert(0, episode)
    advantage = combine_levels(levels, 0 if base_group else 1, alpha)
    return steps_to_tokens(advantage, rows, batch)
