"""GPG: group-centred rewards, scaled up for the samples that carry no signal.

    A_i = alpha (R_i - mean_g R) / f_norm,  alpha = B / #{rewards that are not zero}

Source: arXiv 2504.02546 in verl's form. A lone row has no others to be compared with: it gets 0, or its own reward
with `singleton` "raw" (verl).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import apply_singleton_rule, group_mean
from asyncrl.algo.needs import compares_episodes, zero_where_equal
from asyncrl.algo.ops import to_tokens


@compares_episodes
@zero_where_equal("rewards")
def gpg(batch: AdvantageBatch, *, f_norm: float = 1.0, singleton: Literal["zero", "raw"] = "zero") -> Tensor:
    """[B,T] GPG advantages."""
    rewards = batch.returns
    alpha = rewards.numel() / (rewards != 0).sum().clamp(min=1)
    deviation = rewards - group_mean(rewards, batch.group)
    scores = apply_singleton_rule(deviation, rewards, batch.group, singleton)
    return to_tokens(alpha * scores / f_norm, batch.mask)
