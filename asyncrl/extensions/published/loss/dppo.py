"""DPPO: a trust region on probabilities instead of ratios; tokens that leave it are masked.

    l = -A sg[min(r, ratio_cap)] log pi · M
    TV:        M = [pi - pi_old <= tv_high] if A > 0 else [pi - pi_old >= -tv_low]
    binary KL: M = [KL_bin(pi_old || pi) <= delta, or the token moves back towards pi_old]

Source: arXiv 2602.04879 (ratio cap 20). A = 0 takes the lower branch, as in verl.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio
from asyncrl.extensions.published.loss.importance import weighted_reinforce


def binary_kl(old_logp: Tensor, logp: Tensor) -> Tensor:
    """[B,T] KL between Bernoulli "this token or another"; 1e-8 guards 1 - p, as in verl."""
    p, q = old_logp.exp(), logp.exp()
    return p * (old_logp - logp) + (1 - p) * torch.log((1 - p + 1e-8) / (1 - q + 1e-8))


def _masked_loss(inputs: LossInputs, outside: Tensor, ratio_cap: float) -> LossOutputs:
    weight = bounded_ratio(inputs.log_ratio).clamp(max=ratio_cap)
    return weighted_reinforce(inputs, torch.where(outside, 0.0, weight), outside)


@needs("proximal")
@weighed_by_advantage
def dppo_tv(
    inputs: LossInputs, *, tv_low: float = 0.15, tv_high: float = 0.15, ratio_cap: float = 20.0
) -> LossOutputs:
    """Mask by the change of the token's probability."""
    adv = inputs.need("advantages")
    shift = (inputs.logp.exp() - inputs.need("proximal_logp").exp()).detach()
    return _masked_loss(inputs, torch.where(adv > 0, shift > tv_high, shift < -tv_low), ratio_cap)


@needs("proximal")
@weighed_by_advantage
def dppo_kl(
    inputs: LossInputs, *, kl_low: float = 0.05, kl_high: float = 0.05, ratio_cap: float = 20.0
) -> LossOutputs:
    """Mask by the binary KL of the token, unless the token moves back."""
    adv, old = inputs.need("advantages"), inputs.need("proximal_logp")
    logp = inputs.logp.detach()
    kl = binary_kl(old, logp) * inputs.mask
    outside = torch.where(adv > 0, (kl > kl_high) & (logp > old), (kl > kl_low) & (logp < old))
    outputs = _masked_loss(inputs, outside, ratio_cap)
    return LossOutputs(outputs.token_loss, outputs.metrics, outputs.tensors | {"binary_kl": kl})
