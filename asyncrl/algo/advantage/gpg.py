"""GPG: group-centred rewards, scaled up for the samples that carry no signal.

    A_i = alpha (R_i - mean_g R) / f_norm,  alpha = B / #{rewards that are not zero}

Source: arXiv 2504.02546 in verl's form.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean
from asyncrl.algo.ops import to_tokens


def gpg(batch: AdvantageBatch, *, f_norm: float = 1.0) -> Tensor:
    """[B,T] GPG advantages."""
    rewards = batch.returns
    alpha = rewards.numel() / (rewards != 0).sum().clamp(min=1)
    return to_tokens(alpha * (rewards - group_mean(rewards, batch.group)) / f_norm, batch.mask)
