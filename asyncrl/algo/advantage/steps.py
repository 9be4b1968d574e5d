"""The step view of a batch: one row per sampled turn, for estimators that compare steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean, group_size, group_std


@dataclass(frozen=True, slots=True)
class StepRows:
    """N steps, in order inside each trajectory."""

    prompt: Tensor
    """[N] group index."""
    traj: Tensor
    """[N] row of the batch."""
    index: Tensor
    """[N] turn index inside the trajectory."""
    reward: Tensor
    """[N] step rewards; an outcome reward is on the last step."""
    episode_reward: Tensor
    """[N] trajectory reward, repeated."""


def step_rows(batch: AdvantageBatch, given: list[list[float]] | None = None) -> StepRows:
    """Rows of a batch that has turn rewards; or of `given` ones, to which nothing is added."""
    rewards = batch.returns
    prompt, traj, index, step = [], [], [], []
    for row, turns in enumerate(batch.need("turn_rewards") if given is None else given):
        rest = float(rewards[row]) - sum(turns) if given is None else 0.0
        for k, reward in enumerate(turns):
            prompt.append(int(batch.group[row]))
            traj.append(row)
            index.append(k)
            step.append(reward + (rest if k == len(turns) - 1 else 0.0))
    device = rewards.device
    traj_t = torch.tensor(traj, dtype=torch.long, device=device)
    return StepRows(
        torch.tensor(prompt, dtype=torch.long, device=device),
        traj_t,
        torch.tensor(index, dtype=torch.long, device=device),
        torch.tensor(step, dtype=rewards.dtype, device=device),
        rewards[traj_t],
    )


def steps_to_tokens(values: Tensor, rows: StepRows, batch: AdvantageBatch) -> Tensor:
    """[B,T] each sampled token gets the value [N] of its turn."""
    turn_ids = batch.need("turn_ids")
    width = int(rows.index.max()) + 1 if rows.index.numel() else 1
    table = torch.zeros(turn_ids.shape[0], width, dtype=values.dtype, device=values.device)
    table[rows.traj, rows.index] = values
    return torch.where(
        batch.mask & (turn_ids >= 0), table.gather(1, turn_ids.clamp(0, width - 1).long()), 0.0
    )


def step_returns(step_reward: Tensor, traj: Tensor, gamma: float) -> Tensor:
    """[N] `Σ_k gamma^k r_{t+k}` inside each trajectory; rows of a trajectory are in order."""
    returns = torch.zeros_like(step_reward)
    running: dict[int, float | Tensor] = {}
    for row in reversed(range(len(step_reward))):
        key = int(traj[row])
        running[key] = step_reward[row] + gamma * running.get(key, 0.0)
        returns[row] = running[key]
    return returns


def episode_advantage(
    episode_reward: Tensor,
    prompt: Tensor,
    traj: Tensor,
    std: bool,
    per_trajectory: bool,
    ddof: int,
    eps: float,
) -> Tensor:
    """[N] episode reward against the prompt's other episodes.

    Statistics count each trajectory once (`per_trajectory`), or once per step row, which lets long
    trajectories dominate the mean (verl-agent's default). A prompt with a single count keeps its raw
    reward.
    """
    first = first_rows(traj) if per_trajectory else torch.ones_like(traj, dtype=torch.bool)
    counted, groups = episode_reward[first], prompt[first]
    mean = torch.where(group_size(groups) > 1, group_mean(counted, groups), 0.0)
    scale = torch.where(group_size(groups) > 1, group_std(counted, groups, ddof), 1.0) + eps
    lookup = {int(p): i for i, p in enumerate(groups)}
    rows = torch.tensor([lookup[int(p)] for p in prompt], dtype=torch.long, device=prompt.device)
    deviation = episode_reward - mean[rows]
    return deviation / scale[rows] if std else deviation


def first_rows(traj: Tensor) -> Tensor:
    """[N] bool, True on the first row of each trajectory."""
    seen: set[int] = set()
    flags = [not (int(t) in seen or seen.add(int(t))) for t in traj]  # type: ignore[func-returns-value]
    return torch.tensor(flags, dtype=torch.bool, device=traj.device)


def centred_in_groups(x: Tensor, group: Tensor, std: bool, ddof: int, eps: float) -> Tensor:
    """[N] deviation from the group's mean, optionally standardised; 0 for singletons."""
    deviation = x - group_mean(x, group)
    return deviation / (group_std(x, group, ddof) + eps) if std else deviation
