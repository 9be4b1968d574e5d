"""Baselines that are learned while a run trains: beliefs about each prompt's success, and running means.

    belief: v = alpha / (alpha + beta);  alpha <- rho alpha + R,  beta <- rho beta + 1 - R
            rho = clip(2^(-D / D_half), rho_min, rho_max)
    mean:   A = R - b,  then  b <- decay b + (1 - decay) R

D is the mean |log pi_then - log pi_now| on the prompt's previous response: a policy that moved forgets faster. Sources:
SPO arXiv 2509.13232 (D_half 0.06, rho 0.875..0.96, rewards in [0, 1]), SPIRAL arXiv 2506.24119 (decay 0.95).
"""

from __future__ import annotations

import torch
from torch import Tensor

DECAY = 0.95


def ema_baseline(baseline: float, reward: float, decay: float = DECAY) -> tuple[float, float]:
    """`(advantage, next baseline)` of a running mean."""
    return reward - baseline, decay * baseline + (1 - decay) * reward


def beta_mean(alpha: Tensor, beta: Tensor) -> Tensor:
    """[N] expected success rate, the baseline."""
    return alpha / (alpha + beta)


def forgetting(
    drift: Tensor, half_life: float = 0.06, rho_min: float = 0.875, rho_max: float = 0.96
) -> Tensor:
    """[N] how much of the old evidence to keep after a mean absolute log-probability change `drift`."""
    return torch.pow(2.0, -drift / half_life).clamp(rho_min, rho_max)


def update_beta(alpha: Tensor, beta: Tensor, reward: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """[N] next `(alpha, beta)`."""
    return rho * alpha + reward, rho * beta + 1 - reward


def initial_beta(offline_scores: Tensor, rho_min: float = 0.875) -> tuple[float, float]:
    """Starting `(alpha, beta)` from n offline binary scores, worth `1 / (1 - rho_min)` observations.

    Without offline scores: (0.5, 0.5).
    """
    n = offline_scores.numel()
    if n == 0:
        return 0.5, 0.5
    successes, worth = float(offline_scores.sum()), initial_worth(rho_min)
    return worth * (successes + 0.5) / (n + 1), worth * (n - successes + 0.5) / (n + 1)


def initial_worth(rho_min: float = 0.875) -> float:
    """Number of observations that a tracker with the fastest forgetting remembers."""
    return 1.0 / (1.0 - rho_min)
