"""Adaptive entropy bonus: raise its coefficient while the entropy is below a target, and apply it only then.

    c <- c + step if H < target, c - step if H > target, never below 0;  the loss has  -c H  while H <= target

Source: Skywork-OR1, arXiv 2505.22312 (target 0.2, step 0.005, c from 0). H is the mean token entropy of the last step;
theirs is that of the step itself. Torch-free.
"""

from __future__ import annotations


def next_entropy_coef(coef: float, entropy: float, target: float, step: float) -> float:
    """Coefficient after a step whose tokens had this mean entropy."""
    if step < 0:
        raise ValueError(f"step must not be negative, got {step}")
    if entropy == target:
        return coef
    return max(coef + (step if entropy < target else -step), 0.0)


def applied_entropy_coef(coef: float, entropy: float, target: float) -> float:
    """What of the coefficient enters the loss."""
    return coef if entropy <= target else 0.0
