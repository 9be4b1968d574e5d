"""The averaged policy of PPO-EWMA: weights, decay from staleness, automatic reset.

    W' = beta W + 1,   theta_e <- theta_e · beta W / W' + theta / W'        (bias-corrected)

Source: "Batch size-invariance for policy optimization" arXiv 2110.00641; the choice of beta and the reset
rule follow "Missing Old Logits" arXiv 2605.12070, known to us from the paper only.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs


def ewma_step(beta: float, total_weight: float) -> tuple[float, float]:
    """`(share, next total weight)`: the average takes `share` of the new weights.

    A first step (`total_weight` 0) and a reset (`beta` 0) both give share 1.
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta}")
    total = beta * total_weight + 1.0
    return 1.0 / total, total


@torch.no_grad()
def update_ewma(
    averaged: Iterable[Tensor], current: Iterable[Tensor], beta: float, total_weight: float
) -> float:
    """Move `averaged` towards `current` in place; returns the next total weight."""
    share, total = ewma_step(beta, total_weight)
    for mean, new in zip(averaged, current, strict=True):
        mean.lerp_(new.to(mean.dtype), share)
    return total


def beta_from_staleness(staleness: float) -> float:
    """`W / (W + 2)`: the mean age `beta / (1 - beta)` is then half the staleness W, in versions."""
    if staleness < 0:
        raise ValueError(f"staleness must not be negative, got {staleness}")
    return staleness / (staleness + 2.0)


def should_reset(active_fraction: float, threshold: float = 0.9) -> bool:
    """True when too few tokens carry a gradient after mask and clip: the average lags too far."""
    return active_fraction < threshold


@needs("average")
def ewma(inputs: LossInputs, *, beta: float | None = None, reset_below: float = 0.9) -> Tensor:
    """[B,T] log-probabilities of the averaged policy (PPO-EWMA), for which the trainer takes one forward pass.

    The parameters are for the trainer, which keeps the average: its decay (None follows the staleness of each batch)
    and the share of tokens with a gradient below which it returns to the current policy.
    """
    del beta, reset_below
    return inputs.need("proximal_logp")
