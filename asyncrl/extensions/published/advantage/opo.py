"""OPO: the reward-variance-optimal baseline when gradient norms grow with length.

    b = Σ_j L_j R_j / Σ_j L_j over the group,  A_i = R_i - b

Source: arXiv 2505.23585; verl. A lone row gets 0 (verl: raw reward).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import apply_singleton_rule, group_mean
from asyncrl.algo.needs import group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


def opo_scores(rewards: Tensor, group: Tensor, lengths: Tensor, singleton: str = "zero") -> Tensor:
    """[B] advantages; `lengths` [B] counts sampled tokens."""
    advantage = rewards - group_mean(rewards, group, weights=lengths)
    return apply_singleton_rule(advantage, rewards, group, singleton)


@group_local
@zero_where_equal("rewards")
def opo(batch: AdvantageBatch, *, singleton: Literal["zero", "raw"] = "zero") -> Tensor:
    """[B,T] advantages against the length-weighted mean."""
    return to_tokens(opo_scores(batch.returns, batch.group, batch.lengths, singleton), batch.mask)
