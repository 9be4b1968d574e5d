"""Predict the difficulty of unseen prompts from a few rolled-out ones, and draw prompts near a target.

    d̂ = Σ_j softmax_j(q·k_j / sqrt(dim) / tau) d_j, calibrated by σ(scale logit(d̂) + bias)
    P(prompt) ∝ exp(-|d̂ - alpha| / tau)

Source: data-efficient-llm-rl, arXiv 2506.05316 and its code (256 reference prompts, alpha 0.5, tau 1e-3).
Torch-free.
"""

from __future__ import annotations

import numpy as np


def attention_weights(query: np.ndarray, reference_keys: np.ndarray, tau: float = 1.0) -> np.ndarray:
    """[K] weights of the reference prompts for a query embedding [D] and keys [K,D]."""
    scores = reference_keys @ query / np.sqrt(len(query)) / tau
    return _softmax(scores)


def calibrate(difficulty: float, scale: float = 1.0, bias: float = 0.0) -> float:
    """Platt-calibrated difficulty in (0, 1)."""
    p = float(np.clip(difficulty, 1e-12, 1 - 1e-12))
    return float(1 / (1 + np.exp(-(scale * np.log(p / (1 - p)) + bias))))


def targeted_probabilities(difficulty: np.ndarray, alpha: float = 0.5, tau: float = 1e-3) -> np.ndarray:
    """[N] probability of drawing each prompt."""
    return _softmax(-np.abs(np.asarray(difficulty, dtype=np.float64) - alpha) / tau)


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()
