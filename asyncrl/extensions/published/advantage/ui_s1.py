"""UI-S1: semi-online credit, cut where the agent left the recorded trajectory.

    backwards: matched step: run = r_t + gamma run, ret = run;  mismatched: ret = r_t, run = 0
    A = w_episode A^E + w_step A^S,  A^S among the prompt's steps of the same index

Source: arXiv 2509.11543 and its code; normalisation modes as in GiGPO, episode statistics once per step row.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage.steps import centred_in_groups, episode_advantage, step_rows, steps_to_tokens
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_index
from asyncrl.algo.needs import group_local, needs, zero_where_equal


def matched_returns(step_reward: Tensor, traj: Tensor, matches: Tensor, gamma: float) -> Tensor:
    """[N] returns; a mismatched step keeps its own reward and passes nothing back."""
    returns = torch.zeros_like(step_reward)
    running: dict[int, Tensor | float] = {}
    for row in reversed(range(len(step_reward))):
        key = int(traj[row])
        if bool(matches[row]):
            running[key] = step_reward[row] + gamma * running.get(key, 0.0)
            returns[row] = running[key]
        else:
            running[key] = 0.0
            returns[row] = step_reward[row]
    return returns


def index_groups(prompt: Tensor, step_index: Tensor) -> Tensor:
    """[N] index of the pair (prompt, step index)."""
    return group_index(list(zip(prompt.tolist(), step_index.tolist(), strict=True)), prompt.device)


@needs("turns", "matches")
@group_local
@zero_where_equal("rewards", "turn_rewards", "matches")
def ui_s1(
    batch: AdvantageBatch,
    *,
    gamma: float = 0.5,
    w_step: float = 1.0,
    w_episode: float = 1.0,
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm",
    eps: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """[B,T] UI-S1 advantages."""
    rows, std = step_rows(batch), mode == "mean_std_norm"
    matches = torch.tensor([m for row in batch.need("turn_matches") for m in row], dtype=torch.bool)
    returns = matched_returns(rows.reward, rows.traj, matches, gamma)
    step = centred_in_groups(returns, index_groups(rows.prompt, rows.index), std, ddof, eps)
    episode = episode_advantage(rows.episode_reward, rows.prompt, rows.traj, std, False, ddof, eps)
    return steps_to_tokens(w_episode * episode + w_step * step, rows, batch)
