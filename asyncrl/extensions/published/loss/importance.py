"""REINFORCE with an importance weight that carries no gradient: `l = -sg[w] A log pi`.

| name | w | source |
|---|---|---|
| reinforce | 1 | on-policy, or with a correction (VCPO: sequence TIS) |
| aipo | min(r_b, cap) | LlamaRL arXiv 2505.24034, cap 2..10 |
| reinforce_tis | clip(r_b, low, high) | ROLL, [0, 1] |
| importance_zero | r_b if 1 - eps_low < r_b < 1 + eps_high, else 0 | SkyRL `rollout_is` |

r_b = pi / mu. CISPO is the same form with the ratio to the proximal policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import extreme_over, mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio


def weighted_reinforce(inputs: LossInputs, weight: Tensor, clipped: Tensor) -> LossOutputs:
    """`-sg[weight] A log pi`; `clipped` [B,T] says where the weight was bounded.

    Every token keeps a gradient.
    """
    weight = weight.detach() * inputs.mask
    loss = -weight * inputs.need("advantages") * inputs.logp
    metrics = {
        "clip_fraction": mean_over(clipped, inputs.mask),
        "loss_weight/mean": mean_over(weight, inputs.mask),
        "loss_weight/max": extreme_over(weight, inputs.mask),
    }
    return LossOutputs(loss, metrics, {"weight": weight, "clipped": clipped & inputs.mask})


@weighed_by_advantage
def reinforce(inputs: LossInputs) -> LossOutputs:
    """`-A log pi`."""
    return weighted_reinforce(inputs, torch.ones_like(inputs.logp), torch.zeros_like(inputs.mask))


@needs("behavior")
@weighed_by_advantage
def aipo(inputs: LossInputs, *, cap: float = 2.0) -> LossOutputs:
    """Weight `min(r_b, cap)`."""
    ratio = bounded_ratio(inputs.behavior_log_ratio)
    return weighted_reinforce(inputs, ratio.clamp(max=cap), ratio > cap)


@needs("behavior")
@weighed_by_advantage
def reinforce_tis(inputs: LossInputs, *, low: float = 0.0, high: float = 1.0) -> LossOutputs:
    """Weight `clip(r_b, low, high)`."""
    ratio = bounded_ratio(inputs.behavior_log_ratio)
    return weighted_reinforce(inputs, ratio.clamp(low, high), (ratio < low) | (ratio > high))


@needs("behavior")
@weighed_by_advantage
def importance_zero(inputs: LossInputs, *, eps_low: float = 0.2, eps_high: float = 0.2) -> LossOutputs:
    """Weight r_b strictly inside the bounds, zero outside."""
    ratio = bounded_ratio(inputs.behavior_log_ratio)
    inside = (ratio > 1 - eps_low) & (ratio < 1 + eps_high)
    return weighted_reinforce(inputs, torch.where(inside, ratio, 0.0), ~inside)
