"""MC-GRPO: rewards centred on the group's median and scaled by its median absolute deviation.

    sample G + 1;  med = lower median,  MAD = lower median of |R - med|
    A_i = (R_i - med) / (MAD + eps);  drop the pivot, the first sample equal to the median

Source: arXiv 2601.22582 (eps 1e-3, no 1.4826 factor). With binary rewards a majority has MAD 0, and the
paper's form then gives every minority sample |A| = 1 / eps. `mad_zero` states the rule for that case: "std"
(our default) divides by `std + eps` instead, "floor" by `max(MAD, floor)`, "paper" keeps the division by
eps. `rescale` multiplies by (G + 1) / #{A != 0}, as the authors' code does without saying so. Even sizes
use the lower median.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.groups import dense
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import compares_episodes, group_local, zero_where_equal
from asyncrl.algo.ops import to_tokens


class MedianCentred(NamedTuple):
    """One group."""

    advantages: Tensor
    """[G+1] before the multiplier."""
    median: Tensor
    mad: Tensor
    pivot: int
    """Index of the row to drop."""
    multiplier: float
    """(G + 1) / number of non-zero advantages."""


def median_centred(
    rewards: Tensor, eps: float = 1e-3, mad_zero: str = "std", floor: float = 0.05
) -> MedianCentred:
    """Advantages of one group of rewards [G+1]."""
    median = rewards.median()
    deviation = rewards - median
    mad = deviation.abs().median()
    scale = mad + eps
    if mad_zero == "std" and mad == 0:
        scale = (rewards.std() if rewards.numel() > 1 else mad) + eps
    elif mad_zero == "floor":
        scale = mad.clamp(min=floor) + eps
    elif mad_zero not in ("std", "paper"):
        raise ValueError(f"mad_zero must be 'std', 'floor' or 'paper', got {mad_zero!r}")
    advantages = deviation / scale
    nonzero = int((advantages != 0).sum())
    pivot = int((rewards == median).nonzero()[0])
    return MedianCentred(advantages, median, mad, pivot, rewards.numel() / max(nonzero, 1))


@compares_episodes
@group_local
@zero_where_equal("rewards")
def mc_grpo(
    batch: AdvantageBatch,
    *,
    eps: float = 1e-3,
    mad_zero: Literal["std", "floor", "paper"] = "std",
    floor: float = 0.05,
    rescale: bool = False,
) -> AdvantageOutputs:
    """Median-centred advantages; `keep` drops one pivot per group of two or more."""
    rewards, g = batch.returns, dense(batch.group)
    scores = torch.zeros_like(rewards)
    keep = torch.ones_like(g, dtype=torch.bool)
    flat = torch.zeros_like(keep)
    for index in g.unique():
        rows = (g == index).nonzero().squeeze(-1)
        if len(rows) == 1:
            continue
        found = median_centred(rewards[rows], eps, mad_zero, floor)
        scores[rows] = found.advantages * (found.multiplier if rescale else 1.0)
        keep[rows[found.pivot]] = False
        flat[rows] = found.mad == 0
    metrics = {"mc_grpo/mad_zero_fraction": mean_over(flat)}
    return AdvantageOutputs(to_tokens(scores, batch.mask), keep=keep, metrics=metrics)
