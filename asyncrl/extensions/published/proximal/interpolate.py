"""Proximal log-probabilities without a forward pass, interpolated between behavior and current policy.

    v_prox = v_theta - 1,  alpha = clip((v_prox - v_b) / (v_theta - v_b), 0, 1)
    log-linear:  log pi_prox = log mu + alpha (sg[log pi] - log mu)
    linear:      log pi_prox = log((1 - alpha) mu + alpha sg[pi] + 1e-10)

Source: A-3PO in AReaL. alpha is 0 for tokens of the current version (or newer) and where nothing was
sampled, so those tokens reduce to PPO on mu. The interpolation re-parameterises the clip bounds ("Missing
Old Logits", arXiv 2605.12070, Prop. 1): r becomes r_b^(1-alpha) and rho r_b^alpha. It does not measure
engine mismatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs


def interpolation_weight(versions: Tensor, current_version: int) -> Tensor:
    """[B,T] alpha in [0,1], float64, of integer versions [B,T] (-1 where nothing was sampled)."""
    age = current_version - versions
    sampled_earlier = (versions >= 0) & (age > 0)
    alpha = (age - 1).double() / age.clamp(min=1).double()
    return torch.where(sampled_earlier, alpha.clamp(0, 1), 0.0)


def loglinear_logp(logp: Tensor, behavior_logp: Tensor, alpha: Tensor) -> Tensor:
    """[B,T] geometric interpolation, without gradient."""
    return behavior_logp + alpha.to(logp.dtype) * (logp.detach() - behavior_logp)


def linear_logp(logp: Tensor, behavior_logp: Tensor, alpha: Tensor) -> Tensor:
    """[B,T] arithmetic interpolation of the probabilities, without gradient."""
    alpha = alpha.to(logp.dtype)
    return torch.log((1 - alpha) * behavior_logp.exp() + alpha * logp.detach().exp() + 1e-10)


@needs("behavior", "versions")
def loglinear(inputs: LossInputs) -> Tensor:
    """[B,T] log-linear approximation from `versions` and `current_version`."""
    alpha = interpolation_weight(inputs.need("versions"), inputs.current_version)
    return loglinear_logp(inputs.logp, inputs.need("behavior_logp"), alpha)


@needs("behavior", "versions")
def linear(inputs: LossInputs) -> Tensor:
    """[B,T] linear approximation from `versions` and `current_version`."""
    alpha = interpolation_weight(inputs.need("versions"), inputs.current_version)
    return linear_logp(inputs.logp, inputs.need("behavior_logp"), alpha)
