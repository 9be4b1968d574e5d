"""SAT: a staleness-adaptive trust region. Tokens far from the proximal policy get a narrower clip.

    d = sg[log r],  q = inf{x : F_|d|(x) >= quantile} over sampled tokens,  ψ(u) = 1 / (1 + (u / q)²)
    where q > 0 and |d| > q:  c+ = ψ([d]+), c- = ψ([-d]+), else 1
    l = max(-A r, -A clip(r, 1 - eps_low c-, 1 + eps_high c+))

Source: arXiv 2607.18722 as its authors' page states it (quantile 0.9, eps 0.2, k3 KL 1e-3). The quantile is
the inverse-CDF order statistic, without interpolation. It is taken over the micro-batch, or over the step
when `statistics["sat_quantile"]` is given.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import clipped_surrogate, ratio_metrics
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs, ratio_statistics, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio


def order_quantile(x: Tensor, level: float) -> Tensor:
    """Smallest element of `x` [n] with at least the share `level` at or below it; 0 if empty."""
    if not x.numel():
        return x.new_zeros(())
    # The level as it is written: 0.55 times 100 is a little more than 55 in floating point.
    rank = min(max(math.ceil(Fraction(str(level)) * x.numel()), 1), x.numel())
    return x.kthvalue(rank).values


def trust_bounds(
    distance: Tensor, q: Tensor, eps_low: float, eps_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`(lower, upper, gated)` [B,T] bounds of the ratio for signed distances `d` [B,T]."""
    gated = (q > 0) & (distance.abs() > q)
    scale = torch.where(q > 0, q, 1.0)

    def shrink(u: Tensor) -> Tensor:
        return torch.where(gated, 1 / (1 + (u.clamp(min=0) / scale) ** 2), 1.0)

    return 1 - eps_low * shrink(-distance), 1 + eps_high * shrink(distance), gated


def quantile_of_ratios(log_ratio: Tensor, quantile: float) -> dict[str, Tensor]:
    """The radius of one optimizer step, for `ratio_statistics`; `log_ratio` [N]."""
    return {"sat_quantile": order_quantile(log_ratio.abs(), quantile)}


@needs("proximal")
@ratio_statistics(quantile_of_ratios)
@weighed_by_advantage
def sat(
    inputs: LossInputs, *, eps_low: float = 0.2, eps_high: float = 0.2, quantile: float = 0.9
) -> LossOutputs:
    """PPO clip with staleness-adaptive radii."""
    log_ratio = inputs.log_ratio
    distance = log_ratio.detach()
    q = inputs.statistics.get("sat_quantile")
    q = order_quantile(distance[inputs.mask].abs(), quantile) if q is None else q
    lower, upper, gated = trust_bounds(distance, q, eps_low, eps_high)
    ratio = bounded_ratio(log_ratio)
    loss, binds = clipped_surrogate(ratio, inputs.need("advantages"), lower, upper)
    metrics = ratio_metrics(inputs, ratio) | {
        "clip_fraction": mean_over(binds, inputs.mask),
        "sat/quantile": mean_over(q.expand_as(inputs.mask), inputs.mask),
        "sat/gate_rate": mean_over(gated, inputs.mask),
        "sat/lower": mean_over(lower, inputs.mask),
        "sat/upper": mean_over(upper, inputs.mask),
    }
    tensors = {
        "clipped": binds & inputs.mask,
        "gated": gated & inputs.mask,
        "quantile": q,
        "lower": lower * inputs.mask,
        "upper": upper * inputs.mask,
    }
    return LossOutputs(loss * inputs.mask, metrics, tensors)
