"""IGPO: reward a turn by how much likelier it makes the ground-truth answer.

    p_t = exp(mean_j log pi_old(y*_j | h_t, y*_{<j})),  r_t = p_t - p_{t-1},  last turn: outcome reward
    z = all turn rewards of the group standardised together,  A_t = Σ_{k >= t} gamma^{k-t} z_k

Source: arXiv 2510.14967. This is the paper's form; `igpo_released` has the two in the authors' code. The trainer
computes p_t before each turn, from the answer in the task's data; the gain of a turn is what p has grown by when the
next one begins. With `source` "environment" the turn rewards of the environment stand in for the gains.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from asyncrl.algo.advantage.steps import step_returns, step_rows, steps_to_tokens
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean, group_std
from asyncrl.algo.needs import needs


def information_gain(probability: Tensor) -> Tensor:
    """[K] turn rewards from the probabilities [K+1] before the first turn and after each."""
    return probability[1:] - probability[:-1]


def standardised_turn_returns(
    turn_reward: Tensor, traj: Tensor, group: Tensor, gamma: float, eps: float = 1e-6, ddof: int = 1
) -> tuple[Tensor, Tensor]:
    """`(z, advantage)` [N] of turn rows; rows of a trajectory are in order."""
    z = (turn_reward - group_mean(turn_reward, group)) / (group_std(turn_reward, group, ddof) + eps)
    return z, step_returns(z, traj, gamma)


def gain_rewards(batch: AdvantageBatch) -> list[list[float]]:
    """Reward of each turn of each row: the information gain, and on the last turn the outcome."""
    probability, returns = batch.need("answer_probability"), batch.returns
    rewards = []
    for row, turns in enumerate(batch.need("turn_rewards")):
        gains = information_gain(probability[row, : len(turns)])
        rewards.append([*gains.tolist(), float(returns[row])] if turns else [])
    return rewards


@needs("turns")
@needs("answers", source="trainer")
def igpo(
    batch: AdvantageBatch,
    *,
    gamma: float = 1.0,
    eps: float = 1e-6,
    ddof: int = 1,
    source: Literal["trainer", "environment"] = "trainer",
) -> Tensor:
    """[B,T] IGPO advantages."""
    rows = step_rows(batch, gain_rewards(batch) if source == "trainer" else None)
    _, advantage = standardised_turn_returns(rows.reward, rows.traj, rows.prompt, gamma, eps, ddof)
    return steps_to_tokens(advantage, rows, batch)
