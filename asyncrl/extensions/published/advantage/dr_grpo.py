"""Dr.GRPO: group-centred rewards without division by the standard deviation.

    A_i = R_i - mean_g R

Source: "Understanding R1-Zero-Like Training", arXiv 2503.20783. The other half of the method is the
fixed-length aggregation `seq_mean_token_sum_norm`, which the preset sets. A lone row gets 0 (verl: raw
reward).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import compares_episodes, group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


@compares_episodes
@group_local
@zero_where_equal("rewards")
def dr_grpo(batch: AdvantageBatch, *, singleton: Literal["zero", "raw"] = "zero") -> Tensor:
    """[B,T] group-centred advantages."""
    return to_tokens(grpo_scores(batch.returns, batch.group, std="none", singleton=singleton), batch.mask)
