"""Metrics of the advantage stage. The batch is the whole step's, so these are final on every rank."""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import dense, group_range, group_size
from asyncrl.algo.metrics import Metrics, extreme_over, mean_over


def advantage_metrics(batch: AdvantageBatch, advantages: Tensor, keep: Tensor) -> Metrics:
    """Rewards, groups without signal, advantages by sign, lengths, rows left out.

    Group fractions count groups, not rows.
    """
    low, high = group_range(batch.rewards, batch.group)
    size = group_size(batch.group)
    first = _first_rows(batch.group)
    flat = (high == low) & (size > 1)
    mask = batch.mask & keep.unsqueeze(-1)
    found = {
        "reward/mean": mean_over(batch.rewards),
        "reward/max": extreme_over(batch.rewards),
        "reward/min": extreme_over(batch.rewards, kind="min"),
        "group/zero_variance_fraction": mean_over(flat, first),
        "group/singleton_fraction": mean_over(size == 1, first),
        "group/size": mean_over(size, first),
        "advantage/mean": mean_over(advantages, mask),
        "advantage/abs": mean_over(advantages.abs(), mask),
        "advantage/positive_mean": mean_over(advantages, mask & (advantages > 0)),
        "advantage/negative_mean": mean_over(advantages, mask & (advantages < 0)),
        "advantage/max": extreme_over(advantages, mask),
        "advantage/min": extreme_over(advantages, mask, "min"),
        "length/mean": mean_over(batch.lengths),
        "length/max": extreme_over(batch.lengths),
        "dropped/row_fraction": mean_over(~keep),
    }
    if batch.truncated is not None:
        found["length/truncated_fraction"] = mean_over(batch.truncated)
    return found


def _first_rows(group: Tensor) -> Tensor:
    """[B] True on the first row of each group."""
    g = dense(group)
    earlier = (g.unsqueeze(0) == g.unsqueeze(1)).tril(-1).any(-1)
    return ~earlier
