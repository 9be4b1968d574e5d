"""Entropy of the next-token distribution.

    H = -Σ_v p_v log p_v,   dH/dz = -p (log p + H)

As a bonus it enters the loss as `-coef · agg(H)` with the policy loss's own aggregation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.next_token import next_token_scores


def entropy_from_logits(logits: Tensor) -> Tensor:
    """[...] full-softmax entropy in nats of logits [..., V]. Logits of -inf have probability zero."""
    flat = logits.flatten(0, -2) if logits.ndim > 1 else logits[None]
    labels = torch.zeros(len(flat), dtype=torch.long, device=logits.device)
    found = next_token_scores(flat, labels, entropy=True).entropy
    assert found is not None
    return found.view(logits.shape[:-1])
