"""ASPO: flip the importance weight of positive tokens, with wider bounds where entropy is high.

    A < 0:  l = -A max(r, 1 - eps)
    A > 0:  l = -A / min(r, 1 + eps), with gradient weight 1 / r while r <= 1 + eps and 0 above
    weight > c  (r for A < 0, 1 / r for A > 0):  l = -sg[c] A log pi, so the gradient stays

Source: Archer2.0 / ASPO, arXiv 2510.06062 (eps 0.2 for low-entropy tokens, 0.4 for the others, c 3). A
token has low entropy when it is at most the `entropy_quantile` of its response (linear interpolation).
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio, where_positive


def low_entropy_mask(entropy: Tensor, mask: Tensor, quantile: float = 0.8) -> Tensor:
    """[B,T] bool, True on sampled tokens whose entropy is at most their response's quantile."""
    valued = torch.where(mask, entropy.detach().float(), torch.nan)
    threshold = torch.nanquantile(valued, quantile, dim=-1, keepdim=True)
    return mask & (valued <= threshold)


def aspo_loss(
    inputs: LossInputs,
    low_entropy: Tensor,
    eps_low_entropy: float = 0.2,
    eps_high_entropy: float = 0.4,
    c_pos: float = 3.0,
    c_neg: float = 3.0,
) -> LossOutputs:
    """The loss for a given [B,T] mask of low-entropy tokens."""
    adv = inputs.need("advantages")
    ratio = bounded_ratio(inputs.log_ratio)
    eps = where_positive(low_entropy.to(ratio.dtype), eps_low_entropy, eps_high_entropy)
    negative = -adv * torch.maximum(ratio, 1 - eps)
    bounded = torch.minimum(ratio, 1 + eps)
    anchor = bounded.detach()
    positive = -adv * (bounded / anchor) / anchor
    loss = torch.where(adv > 0, positive, negative)
    weight = torch.where(adv > 0, 1 / ratio, ratio).detach()
    cap = where_positive(adv, c_pos, c_neg)
    capped = weight > cap
    loss = torch.where(capped, -cap * adv * inputs.logp, loss)
    clipped = torch.where(adv > 0, ratio > 1 + eps, ratio < 1 - eps)
    metrics = {
        "clip_fraction": mean_over(clipped, inputs.mask),
        "clip_fraction/dual": mean_over(capped, inputs.mask),
        "low_entropy_fraction": mean_over(low_entropy, inputs.mask),
    }
    return LossOutputs(loss * inputs.mask, metrics, {"clipped": clipped & inputs.mask})


@needs("proximal", "entropy")
@weighed_by_advantage
def aspo(
    inputs: LossInputs,
    *,
    eps_low_entropy: float = 0.2,
    eps_high_entropy: float = 0.4,
    c_pos: float = 3.0,
    c_neg: float = 3.0,
    entropy_quantile: float = 0.8,
) -> LossOutputs:
    """ASPO with the entropy split computed from `LossInputs.entropy`."""
    low = low_entropy_mask(inputs.need("entropy"), inputs.mask, entropy_quantile)
    return aspo_loss(inputs, low, eps_low_entropy, eps_high_entropy, c_pos, c_neg)
