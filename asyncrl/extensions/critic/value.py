"""Critic regression with the value clip of PPO.

    l = ½ max((V - R)², (clip(V, V_old ± eps) - R)²)

Source: baselines PPO2; verl and AReaL. `huber_delta` replaces the square by the Huber function (AReaL, δ =
10).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.aggregate import aggregate, token_mean
from asyncrl.algo.inputs import LossInputs, Totals
from asyncrl.algo.metrics import Metrics, mean_over, sum_of


def value_term(inputs: LossInputs, totals: Totals, part: Mapping[str, Any]) -> tuple[Tensor, Metrics]:
    """This micro-batch's share of the critic's loss, times its coefficient, and its metrics.

    inputs: with the extras `values` (which carry the gradient), `old_values` and `returns`. part: `algo.value`.
    """
    values, returns, old = inputs.need("values"), inputs.need("returns"), inputs.need("old_values")
    loss, clipped = value_loss(values, old, returns, inputs.mask, part["clip"], part["huber_delta"])
    value = aggregate(token_mean, loss, inputs.mask, totals)
    return part["coef"] * value, {
        "loss/value": sum_of(value),
        "value/clip_fraction": mean_over(clipped, inputs.mask),
        "value/mean": mean_over(values, inputs.mask),
        "value/error": mean_over((values - returns).abs(), inputs.mask),
    }


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip: float | None = 0.2,
    huber_delta: float | None = None,
    factor: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """[B,T] token loss, zero where masked, and where the clipped branch was taken.

    All inputs [B,T]; only `values` carries a gradient. `clip` None turns clipping off.
    """
    returns = returns.detach()
    loss = _penalty(values - returns, huber_delta)
    taken = torch.zeros_like(mask, dtype=torch.bool)
    if clip is not None:
        near = old_values.detach() + (values - old_values.detach()).clamp(-clip, clip)
        clipped = _penalty(near - returns, huber_delta)
        taken = (clipped > loss) & mask.bool()
        loss = torch.where(taken, clipped, loss)
    return factor * loss * mask, taken


def _penalty(error: Tensor, huber_delta: float | None) -> Tensor:
    if huber_delta is None:
        return error**2
    size = error.abs()
    return torch.where(size <= huber_delta, error**2, huber_delta * (2 * size - huber_delta))
