"""VESPO: a sequence ratio reshaped by a gamma kernel.

    w = Π_t pi / mu,  φ = exp(lam + k ln w - lam w),  l = -sg[φ] A log pi

(k, lam) is (k_pos, lam_pos) for sequences with A >= 0, else (k_neg, lam_neg). Source: TRL `vespo`; ln w is
clamped to [ln 1e-8, 20]. The sign of a sequence is that of its mean token advantage.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import LOG_RATIO_CLAMP, sequence_log_ratio, to_tokens, where_positive
from asyncrl.extensions.published.loss.importance import weighted_reinforce


def gamma_kernel(
    log_w: Tensor, positive: Tensor, pos: tuple[float, float], neg: tuple[float, float]
) -> Tensor:
    """[B] φ of log sequence ratios [B]; `pos` and `neg` are `(k, lam)`."""
    log_w = log_w.clamp(math.log(1e-8), LOG_RATIO_CLAMP)
    side = positive.to(log_w.dtype)
    k = where_positive(side, pos[0], neg[0])
    lam = where_positive(side, pos[1], neg[1])
    return torch.exp(lam + k * log_w - lam * log_w.exp())


@needs("behavior")
@weighed_by_advantage
def vespo(
    inputs: LossInputs,
    *,
    k_pos: float = 2.0,
    lam_pos: float = 3.0,
    k_neg: float = 3.0,
    lam_neg: float = 2.0,
) -> LossOutputs:
    """Sequence-kernel REINFORCE."""
    positive = (inputs.need("advantages") * inputs.mask).sum(-1) >= 0
    log_w = sequence_log_ratio(inputs.behavior_log_ratio.detach(), inputs.mask)
    phi = gamma_kernel(log_w, positive, (k_pos, lam_pos), (k_neg, lam_neg))
    outputs = weighted_reinforce(inputs, to_tokens(phi, inputs.mask), torch.zeros_like(inputs.mask))
    return LossOutputs(outputs.token_loss, outputs.metrics, outputs.tensors | {"phi": phi})
