"""Preferences: DPO and IPO on pairs of answers, and KTO on single answers.

    z = (log pi(y+) - log pi(y-)) - (log pi_ref(y+) - log pi_ref(y-)),   sums over tokens
    DPO: -log σ(beta z)                 IPO: (z - 1 / (2 beta))²

    KTO: 1 - σ(beta (g - d)) of a desirable answer, 1 - σ(beta (d - g)) of another;  g = log pi(y) - log pi_ref(y)

d, the drift, is how far the policy has moved from the reference: the mean g of answers to other prompts, at least 0.

Sources: DPO arXiv 2305.18290, IPO arXiv 2310.12036, KTO arXiv 2402.01306.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def preference_logits(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """[N] z from summed log-probabilities [N]."""
    return (chosen - rejected) - (ref_chosen - ref_rejected).detach()


def dpo_loss(logits: Tensor, beta: float) -> Tensor:
    """[N] `-log σ(beta z)`."""
    return -F.logsigmoid(beta * logits)


def ipo_loss(logits: Tensor, beta: float) -> Tensor:
    """[N] `(z - 1/(2 beta))²`."""
    return (logits - 1 / (2 * beta)) ** 2


def kto_loss(gains: Tensor, desirable: Tensor, drift: float | Tensor, beta: float) -> Tensor:
    """[N] losses of single answers, between 0 and 1. gains: [N] `log pi(y) - log pi_ref(y)`, sums over tokens.
    desirable: [N] bool."""
    sign = torch.where(desirable, 1.0, -1.0).to(gains.dtype)
    return 1 - torch.sigmoid(beta * sign * (gains - drift))


def kto_drift(gains: Tensor) -> Tensor:
    """Scalar `max(0, mean)` over the gains [N] of answers to other prompts, without a gradient."""
    return gains.detach().mean().clamp(min=0)
