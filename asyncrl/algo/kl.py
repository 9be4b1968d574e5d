"""Token estimators of KL(pi || pi_ref) from samples of pi, with x = log pi - log pi_ref.

| name | value | gradient as a loss term |
|---|---|---|
| k1 | x | 1: zero in expectation on-policy, so only useful inside the reward |
| k2 | x² / 2 | x: the reverse-KL gradient |
| k3 | exp(-x) - 1 + x | 1 - exp(-x): biased, close to x for small x |
| abs | |x| | sign(x) |
| k1_straight_through, k3_straight_through | k1, k3 | x, as k2 (verl `k1+`, `k3+`) |

Tokens are sampled from mu, not from pi. With `algo.kl.unbiased` the estimate is multiplied by pi / mu, through which
the gradient passes too: k3 is then unbiased in value and gradient (DeepSeek-V3.2, arXiv 2512.02556; slime, TRL).

Source: Schulman, "Approximating KL divergence". Only the exponential is guarded (|x| clamped to 20); verl
also clamps k3 itself to ±10, which we do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.ops import LOG_RATIO_CLAMP


def k1(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Unbiased, can be negative."""
    return logp - reference_logp


def k2(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Half the squared log-ratio."""
    return 0.5 * (logp - reference_logp) ** 2


def k3(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Unbiased and never negative."""
    x = (logp - reference_logp).clamp(-LOG_RATIO_CLAMP, LOG_RATIO_CLAMP)
    return torch.expm1(-x) + x


def absolute(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Absolute log-ratio."""
    return (logp - reference_logp).abs()


def k1_straight_through(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Value of k1, gradient of k2."""
    return _straight_through(k1(logp, reference_logp), k2(logp, reference_logp))


def k3_straight_through(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Value of k3, gradient of k2."""
    return _straight_through(k3(logp, reference_logp), k2(logp, reference_logp))


def _straight_through(value: Tensor, gradient: Tensor) -> Tensor:
    return gradient + (value - gradient).detach()


def kl_in_reward(token_rewards: Tensor, kl: Tensor, mask: Tensor, beta: float) -> Tensor:
    """[B,T] `r_t - beta kl_t` on sampled tokens (InstructGPT arXiv 2203.02155; verl `apply_kl_penalty`)."""
    return token_rewards - beta * kl * mask


def adapt_kl_coef(coef: float, current_kl: float, target: float, horizon: int, num_steps: int) -> float:
    """Next coefficient `coef (1 + clip(kl / target - 1, ±0.2) n / horizon)` (arXiv 1909.08593).

    `num_steps` is the number of samples since the last update, in the unit of `horizon`.
    """
    if target <= 0 or horizon <= 0:
        raise ValueError(f"target and horizon must be positive, got {target} and {horizon}")
    error = min(max(current_kl / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * num_steps / horizon)
