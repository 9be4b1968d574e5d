"""GDRO: reweight difficulty bins by their loss, and give rollouts to the bins with the most variance.

    S <- (1 - ema) S + ema · mean loss,  ω = exp(eta clip(S, ±C)),  q = (1 - gamma) ω / Σ ω + gamma / B
    rollouts: minimise Σ_b q_b v_b / n_b with Σ_b q_b n_b <= n̄
    continuous optimum: n_b = n̄ sqrt(v_b) / Σ q sqrt(v)

Source: arXiv 2601.19280, from the paper. Multiply a bin's advantages by min(ω, ω_max). Torch-free.
"""

from __future__ import annotations

import numpy as np


def update_scores(scores: np.ndarray, mean_loss: np.ndarray, ema: float = 0.1) -> np.ndarray:
    """[B] next bin scores."""
    return (1 - ema) * np.asarray(scores, dtype=np.float64) + ema * np.asarray(mean_loss, dtype=np.float64)


def bin_weights(scores: np.ndarray, eta: float = 1.0, bound: float = 2.0) -> np.ndarray:
    """[B] ω."""
    return np.exp(eta * np.clip(scores, -bound, bound))


def bin_probabilities(weights: np.ndarray, gamma: float = 0.1) -> np.ndarray:
    """[B] q, mixed with the uniform distribution."""
    return (1 - gamma) * weights / weights.sum() + gamma / len(weights)


def sqrt_law(bin_prob: np.ndarray, variance: np.ndarray, mean_rollouts: float) -> np.ndarray:
    """[B] the continuous optimum."""
    root = np.sqrt(np.asarray(variance, dtype=np.float64))
    return mean_rollouts * root / (np.asarray(bin_prob) * root).sum()
