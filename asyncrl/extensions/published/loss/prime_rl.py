"""The importance forms of prime-rl: tokens whose probability moved too far from mu lose the policy term.

    prime_rl:    keep = not (A > 0 and pi - mu > high) and not (A <= 0 and pi - mu < -low)
    ipo_masked:  keep = |pi - mu| <= threshold
    l = -keep adv_tau A r_b + kl_tau log² r_b
    ref_kl:      l = -keep sg[log pi_ref - log pi] r_b + kl_tau log² r_b,  keep = [pi - mu >= -drop]

Source: prime-rl's code. r_b = pi / mu carries the gradient and has no cap beyond the ±20 log clamp (its
documents mention one, its code has none). The quadratic term stays on dropped tokens. A = 0 takes the lower
bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs, reads_no_rewards
from asyncrl.algo.ops import bounded_ratio


def probability_shift(inputs: LossInputs) -> Tensor:
    """[B,T] `pi - mu`, without gradient."""
    return (inputs.logp.exp() - inputs.need("behavior_logp").exp()).detach()


def _kept_importance(inputs: LossInputs, keep: Tensor, advantage: Tensor, kl_tau: float) -> LossOutputs:
    log_ratio = inputs.behavior_log_ratio
    loss = -keep.to(advantage.dtype) * advantage * bounded_ratio(log_ratio) + kl_tau * log_ratio**2
    keep = keep & inputs.mask
    metrics = {"clip_fraction": mean_over(~keep, inputs.mask)}
    return LossOutputs(loss * inputs.mask, metrics, {"keep": keep, "clipped": ~keep & inputs.mask})


@needs("behavior")
def prime_rl(
    inputs: LossInputs,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    adv_tau: float = 1.0,
    kl_tau: float = 1e-3,
) -> LossOutputs:
    """The default loss: probability mask by the sign of A."""
    adv, shift = inputs.need("advantages"), probability_shift(inputs)
    keep = torch.where(adv > 0, shift <= mask_high, shift >= -mask_low)
    return _kept_importance(inputs, keep, adv_tau * adv, kl_tau)


@needs("behavior")
def ipo_masked(
    inputs: LossInputs, *, threshold: float = 0.1, adv_tau: float = 1.0, kl_tau: float = 1e-3
) -> LossOutputs:
    """A symmetric probability mask, whatever the sign of A."""
    keep = probability_shift(inputs).abs() <= threshold
    return _kept_importance(inputs, keep, adv_tau * inputs.need("advantages"), kl_tau)


@needs("behavior", "reference")
@reads_no_rewards
def ref_kl(inputs: LossInputs, *, drop: float = 0.2, kl_tau: float = 1e-3) -> LossOutputs:
    """Distillation from the reference policy: the stopped log-gap is the advantage."""
    gap = inputs.need("reference_logp").detach() - inputs.logp.detach()
    return _kept_importance(inputs, probability_shift(inputs) >= -drop, gap, kl_tau)
