"""Hierarchical GRPO: roles that work on another role's output are compared where that output is the same.

    A = R - mean R over the same agent's invocations
        in the same rollout, for `rollout_agents` (a solver's attempts),
        on the prompt, for all others (the proposers)

Source: prime-rl `hierarchical_grpo` (its `episode_agents`), for proposers and solvers. Problems that two rollouts
propose are of different difficulty, so their solvers are not compared. Lone rows get 0; there is no division by the
standard deviation.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_index, group_mean
from asyncrl.algo.needs import group_local, needs, zero_where_equal
from asyncrl.algo.ops import to_tokens


def peers(prompt: Tensor, agents: list[str], rollouts: list[str], rollout_agents: list[str]) -> Tensor:
    """[B] index of the invocations that each row is compared with."""
    keys = [
        (group, agent, rollout if agent in rollout_agents else None)
        for group, agent, rollout in zip(prompt.tolist(), agents, rollouts, strict=True)
    ]
    return group_index(keys, prompt.device)


@needs("agents")
@group_local
@zero_where_equal("rewards")
def hierarchical_grpo(batch: AdvantageBatch, *, rollout_agents: list[str]) -> Tensor:
    """[B,T] advantages; every row is one invocation."""
    scores = batch.returns
    rollouts = batch.rollouts or [str(row) for row in range(len(scores))]
    compared = peers(batch.group, batch.need("agents"), rollouts, rollout_agents)
    return to_tokens(scores - group_mean(scores, compared), batch.mask)
