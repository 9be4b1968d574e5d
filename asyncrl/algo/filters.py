"""Which sequences may enter the loss.

A filter returns [B] bool; False rows keep their place in group statistics.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_range, group_size
from asyncrl.algo.needs import group_local


def has_signal(rewards: Tensor, group: Tensor, keep_singletons: bool = True) -> Tensor:
    """[B] True where the rewards of the row's group differ (DAPO dynamic sampling, arXiv 2503.14476).

    verl keeps groups of one, whose standard deviation says nothing; `keep_singletons=False` drops them.
    """
    low, high = group_range(rewards, group)
    return (high > low) | ((group_size(group) == 1) & keep_singletons)


@group_local
def dynamic_sampling(batch: AdvantageBatch, *, keep_singletons: bool = True) -> Tensor:
    """[B] rows of groups with signal. A rollout worker that applies it too can sample replacements."""
    return has_signal(batch.rewards, batch.group, keep_singletons)
