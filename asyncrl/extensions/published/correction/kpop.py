"""KPop: drop tokens on which training and rollout policy differ by more than a divergence, in either direction.

    D(p, q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q)),  p = pi_old(token), q = mu(token)
    weight = rho = pi_old / mu  if  max(D(p, q), D(q, p)) <= threshold,  else 0

Source: "Taming Training-Inference Mismatch", Ring team, May 2026 (threshold 0.1); AReaL and prime-rl keep rho, verl's
option only masks (`reweight` False). IcePop's band is one of ratios; this one is wide for rare tokens and narrow for
likely ones. Probabilities are held within 1e-6 of 0 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio

EDGE = 1e-6


def two_sided_binary_kl(logp: Tensor, other_logp: Tensor) -> Tensor:
    """[B,T] the larger of the two divergences between "this token or another" under two policies."""
    p, q = (x.double().exp().clamp(EDGE, 1 - EDGE) for x in (logp, other_logp))
    token, rest = (p / q).log(), ((1 - p) / (1 - q)).log()
    return torch.maximum(p * token + (1 - p) * rest, -q * token - (1 - q) * rest)


@needs("behavior")
def kpop(inputs: LossInputs, *, threshold: float = 0.1, reweight: bool = True) -> Tensor:
    """[B,T] the raw ratio (or 1) of tokens within the region, 0 outside."""
    divergence = two_sided_binary_kl(inputs.need("proximal_logp"), inputs.need("behavior_logp"))
    rho = bounded_ratio(inputs.mismatch_log_ratio)
    weight = rho if reweight else torch.ones_like(rho)
    return torch.where((divergence <= threshold) & inputs.mask, weight, 0.0)
