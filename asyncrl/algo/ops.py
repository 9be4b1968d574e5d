"""Masked reductions and log-ratio arithmetic shared by every formula in this package."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_CLAMP = 20.0
"""Log-ratios are clamped to ± this before `exp`; outside it the gradient is zero (as in verl)."""


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def bounded_ratio(log_ratio: Tensor, limit: float = LOG_RATIO_CLAMP) -> Tensor:
    """`exp(clamp(log_ratio, ±limit))`: finite for any log-probabilities."""
    return log_ratio.clamp(-limit, limit).exp()


def sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """[B] sum of the token log-ratios of each sequence, the log of the product ratio."""
    return (log_ratio * mask).sum(-1)


def mean_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """[B] mean token log-ratio of each sequence, the log of the geometric-mean ratio; 0 for empty rows."""
    return sequence_log_ratio(log_ratio, mask) / mask.sum(-1).clamp(min=1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over positions where `mask` holds; 0 where there is none."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor, ddof: int = 1) -> Tensor:
    """Variance over positions where `mask` holds; 0 where fewer than `ddof + 1` remain."""
    count = mask.sum()
    centred = (x - masked_mean(x, mask)) * mask
    return (centred**2).sum() / (count - ddof).clamp(min=1)


def whiten(x: Tensor, mask: Tensor, eps: float = 1e-8, ddof: int = 1) -> Tensor:
    """`(x - mean) / sqrt(var + eps)` over masked positions, 0 elsewhere.

    As verl `masked_whiten`, whose means divide by `n + 1e-8`; a single position gives 0 where verl raises.
    """
    count = mask.sum()
    if int(count) <= ddof:
        return torch.zeros_like(x)
    guarded = count.to(x.dtype) + 1e-8
    mean = (x * mask).sum() / guarded
    var = ((x - mean) ** 2 * mask).sum() / guarded * count / (count - ddof)
    return (x - mean) * torch.rsqrt(var + eps) * mask


def where_positive(x: Tensor, positive: float, otherwise: float) -> Tensor:
    """`positive` where `x > 0`, else `otherwise`, in the dtype of `x` (two numbers would be float32)."""
    return torch.where(x > 0, x.new_tensor(positive), x.new_tensor(otherwise))


def to_tokens(x: Tensor, mask: Tensor) -> Tensor:
    """Broadcast a per-sequence [B] quantity to its sampled tokens [B,T]."""
    return torch.where(mask, x.unsqueeze(-1), torch.zeros((), dtype=x.dtype, device=x.device))


def quantile(x: Tensor, level: float) -> Tensor:
    """Quantile of `x` [N], N > 0, with linear interpolation; unlike `torch.quantile` of any number of values."""
    place = level * (x.numel() - 1)
    below = x.kthvalue(int(place) + 1).values
    above = x.kthvalue(min(int(place) + 2, x.numel())).values
    return below + (place - int(place)) * (above - below)


def reward_to_go(token_rewards: Tensor, gamma: float = 1.0) -> Tensor:
    """[B,T] discounted sum of the rewards at and after each position."""
    if gamma == 1.0:
        return token_rewards.flip(-1).cumsum(-1).flip(-1)
    returns = torch.zeros_like(token_rewards)
    running = torch.zeros_like(token_rewards[:, 0])
    for t in reversed(range(token_rewards.shape[1])):
        running = token_rewards[:, t] + gamma * running
        returns[:, t] = running
    return returns
