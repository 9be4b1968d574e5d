"""Which sequences may enter the loss, by other rules than whether their group has a signal.

A filter returns [B] bool; False rows keep their place in group statistics.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean, group_std
from asyncrl.algo.needs import group_local
from asyncrl.extensions.published.subset import grown_share, max_variance_subset


def max_variance(batch: AdvantageBatch, *, keep: float = 0.5, full_at: int = 0, eps: float = 1e-6) -> Tensor:
    """[B] the share `keep` of the batch's rows, rounded up, whose group-relative advantages vary the most.

    The samples of D3S (arXiv 2509.22115), for its advantage `(R - mean) / (std + eps)` (ddof 0) whatever the estimator
    is; its choice of tokens is the correction `top_entropy_advantage`. Rows of the lowest and of the highest advantages
    are kept, so groups without signal leave first. full_at: the version from which on all rows are kept, by its
    schedule (`grown_share`); 0 for none. Raises `ValueError` for a share outside (0, 1].
    """
    keep = grown_share(keep, batch.current_version, full_at)
    spread = group_std(batch.rewards, batch.group, 0) + eps
    advantages = (batch.rewards - group_mean(batch.rewards, batch.group)) / spread
    # The subtraction keeps a share of whole rows from being rounded up by the error of the product.
    chosen = max_variance_subset(advantages.numpy(force=True), math.ceil(keep * len(advantages) - 1e-9))
    kept = torch.zeros_like(batch.group, dtype=torch.bool)
    kept[chosen] = True
    return kept


@group_local
def overlong(batch: AdvantageBatch) -> Tensor:
    """[B] rows that no limit truncated (DAPO overlong filter): their rewards still enter group statistics."""
    if batch.truncated is None:
        return torch.ones_like(batch.group, dtype=torch.bool)
    return ~batch.truncated.bool()
