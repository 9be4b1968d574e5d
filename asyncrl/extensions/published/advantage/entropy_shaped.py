"""A single-rollout advantage shaped by entropy: `A_t = (R - b) + min(alpha sg[H_t], |R - b| / kappa)`.

MSSR (single-rollout RL for multimodal models) reports an entropy-shaped advantage but no equation for it. The
shaping term here is that of "Reasoning with Exploration", arXiv 2506.14758 (alpha 0.4, kappa 2): it favours
uncertain tokens, and the cap keeps the sign of the advantage. The baseline is the tracked one of `spo`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import to_tokens


def shape_by_entropy(advantages: Tensor, entropy: Tensor, alpha: float, kappa: float) -> Tensor:
    """[B,T] shaped advantages; `kappa` must exceed 1 so that no sign changes."""
    if kappa <= 1:
        raise ValueError(f"kappa must be greater than 1, got {kappa}")
    return advantages + torch.minimum(alpha * entropy.detach(), advantages.abs() / kappa)


@needs("baselines", "entropy")
def entropy_shaped(batch: AdvantageBatch, *, alpha: float = 0.4, kappa: float = 2.0) -> Tensor:
    """[B,T] entropy-shaped single-rollout advantages."""
    advantages = to_tokens(batch.returns - batch.need("baselines"), batch.mask)
    return shape_by_entropy(advantages, batch.need("entropy"), alpha, kappa) * batch.mask
