"""Normalisation of finished advantages over the whole step's batch."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.needs import group_local
from asyncrl.algo.ops import masked_mean, masked_var


@group_local
def none(advantages: Tensor, mask: Tensor) -> Tensor:
    """Leave them as they are."""
    return advantages


def tokens(advantages: Tensor, mask: Tensor, *, eps: float = 1e-5, ddof: int = 1) -> Tensor:
    """`(A - mean) / (std + eps)` over all sampled tokens (AReaL): long sequences weigh more."""
    mean, std = token_moments(advantages, mask, ddof)
    return (advantages - mean) / (std + eps) * mask


def sequences(advantages: Tensor, mask: Tensor, *, eps: float = 1e-8, ddof: int = 1) -> Tensor:
    """The same over sequences: the moments are those of each sequence's mean advantage."""
    live = mask.any(-1)
    per_row = (advantages * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    mean, std = token_moments(per_row, live, ddof)
    return (advantages - mean) / (std + eps) * mask


def token_moments(x: Tensor, mask: Tensor, ddof: int = 1) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over masked positions."""
    return masked_mean(x, mask), torch.sqrt(masked_var(x, mask, ddof))


def standardise(x: Tensor, eps: float, ddof: int = 1) -> Tensor:
    """[N] `(x - mean) / (std + eps)`; zeros where all values are equal or there are too few."""
    if x.numel() <= ddof or bool(x.max() == x.min()):
        return torch.zeros_like(x)
    return (x - x.mean()) / (x.std(correction=ddof) + eps)
