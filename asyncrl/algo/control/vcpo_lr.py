"""VCPO: shrink the learning rate of a step whose importance weights are concentrated.

    lr_eff = lr min(1, ESS ratio / base)^power

Source: mit-han-lab/vcpo (power 0.5, base 1.0; 0.55 for multi-turn tasks). It applies to one optimizer step;
the scheduler's own rate is restored after it. Torch-free.
"""

from __future__ import annotations


def scaled_learning_rate(
    lr: float, ess_ratio: float, base_ess_ratio: float = 1.0, power: float = 0.5
) -> float:
    """Learning rate of this step, from the sequence ESS ratio in (0, 1] over all ranks."""
    if base_ess_ratio <= 0:
        raise ValueError(f"base_ess_ratio must be positive, got {base_ess_ratio}")
    if ess_ratio < 0:
        raise ValueError(f"ess_ratio must not be negative, got {ess_ratio}")
    return lr * min(1.0, ess_ratio / base_ess_ratio) ** power
