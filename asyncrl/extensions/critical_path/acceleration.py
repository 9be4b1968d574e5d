"""The reward for a short critical path.

    r = factor min(total / critical - 1, most)     for a successful episode, else 0

Source: ThreadWeaver, arXiv 2512.07843, in the form of its released reward (factor 0.5, most 0.2), which is added to a
correctness of 0 or 1. Only successful episodes are paid here, so that threads that solve nothing earn nothing.
"""

from __future__ import annotations

from asyncrl.extensions.critical_path.lengths import Lengths


def acceleration_reward(found: Lengths, success: bool | None, factor: float, most: float) -> float:
    """Return what an episode earns. factor, most: see `CriticalPathConfig`."""
    return factor * min(found.acceleration - 1.0, most) if success else 0.0
