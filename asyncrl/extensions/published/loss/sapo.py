"""SAPO: a sigmoid gate in place of the hard clip.

    l = -A σ(tau (r - 1)) 4 / tau,   tau = tau_pos where A > 0, else tau_neg

Source: arXiv 2511.20347 (1.0 / 1.05). The gradient weight is 1 at r = 1 and decays on both sides.
"""

from __future__ import annotations

import torch

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import ratio_metrics
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio, where_positive


@needs("proximal")
@weighed_by_advantage
def sapo(inputs: LossInputs, *, tau_pos: float = 1.0, tau_neg: float = 1.05) -> LossOutputs:
    """Soft adaptive policy optimisation."""
    if tau_pos <= 0 or tau_neg <= 0:
        raise ValueError(f"temperatures must be positive, got {tau_pos} and {tau_neg}")
    adv = inputs.need("advantages")
    ratio = bounded_ratio(inputs.log_ratio)
    tau = where_positive(adv, tau_pos, tau_neg)
    gate = torch.sigmoid(tau * (ratio - 1))
    gradient_weight = (4 * gate * (1 - gate)).detach()
    metrics = ratio_metrics(inputs, ratio) | {"gate": mean_over(gradient_weight, inputs.mask)}
    return LossOutputs(-adv * gate * 4 / tau * inputs.mask, metrics, {"gate": gradient_weight * inputs.mask})
