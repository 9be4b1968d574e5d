"""GiGPO: episode advantage plus a step advantage among steps that answered the same observation.

    A = A^E + w A^S
    A^E: episode reward against the prompt's episodes
    A^S: step return Σ gamma^k r_{t+k} against the steps of the prompt with the same observation id

Source: arXiv 2505.10978 (gamma 0.95, w 1). Mode "mean_norm" only centres, "mean_std_norm" also divides by the
standard deviation (ddof 1, eps 1e-6). verl-agent counts every trajectory once per step in the episode
statistics; Dr.MAS counts it once (`per_trajectory`, our default). A lone step gets A^S = 0, a lone episode
its raw reward.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from asyncrl.algo.advantage.steps import (
    centred_in_groups,
    episode_advantage,
    step_returns,
    step_rows,
    steps_to_tokens,
)
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_index
from asyncrl.algo.needs import group_local, needs, zero_where_equal


def anchor_groups(prompt: Tensor, observations: list[str]) -> Tensor:
    """[N] index of the pair (prompt, observation)."""
    return group_index(list(zip(prompt.tolist(), observations, strict=True)), prompt.device)


def flat_observations(batch: AdvantageBatch) -> list[str]:
    """The observation id of every step row, in the order of `step_rows`."""
    return [obs for row in batch.need("observation_ids") for obs in row]


@needs("turns", "observations")
@group_local
@zero_where_equal("rewards", "steps")
def gigpo(
    batch: AdvantageBatch,
    *,
    gamma: float = 0.95,
    w: float = 1.0,
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_std_norm",
    per_trajectory: bool = True,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """[B,T] GiGPO advantages."""
    rows, std = step_rows(batch), mode == "mean_std_norm"
    episode = episode_advantage(rows.episode_reward, rows.prompt, rows.traj, std, per_trajectory, ddof, eps)
    anchors = anchor_groups(rows.prompt, flat_observations(batch))
    step = centred_in_groups(step_returns(rows.reward, rows.traj, gamma), anchors, std, ddof, eps)
    return steps_to_tokens(episode + w * step, rows, batch)
