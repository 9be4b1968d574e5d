"""RLOO: the reward minus the mean reward of the other members of the group.

    A_i = R_i - mean_{j != i} R_j = G / (G - 1) (R_i - mean_g R)

Source: "Back to Basics", arXiv 2402.14740. A lone row gets 0 (verl's scalar form: raw reward).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import compares_episodes, group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


def rloo_scores(rewards: Tensor, group: Tensor, singleton: str = "zero") -> Tensor:
    """[B] leave-one-out advantages."""
    return grpo_scores(rewards, group, mean="leave_one_out", std="none", singleton=singleton)


@compares_episodes
@group_local
@zero_where_equal("rewards")
def rloo(batch: AdvantageBatch, *, singleton: Literal["zero", "raw"] = "zero") -> Tensor:
    """[B,T] leave-one-out advantages."""
    return to_tokens(rloo_scores(batch.returns, batch.group, singleton), batch.mask)
