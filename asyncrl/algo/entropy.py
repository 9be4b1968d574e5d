"""Entropy of the next-token distribution.

    H = log Z - Σ_v p_v z_v,   dH/dz = -p (log p + H)

As a bonus it enters the loss as `-coef · agg(H)` with the policy loss's own aggregation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.ops import at_least_float32


def entropy_from_logits(logits: Tensor) -> Tensor:
    """[...] full-softmax entropy in nats of logits [..., V]. Logits of -inf have probability zero."""
    logits = at_least_float32(logits)
    log_z = torch.logsumexp(logits, dim=-1)
    probabilities = torch.softmax(logits, dim=-1)
    weighted = torch.where(probabilities > 0, probabilities * logits, 0.0)
    return log_z - weighted.sum(-1)
