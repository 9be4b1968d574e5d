"""The two-sided clip of INTELLECT-2: PPO clip with a bound delta on the ratio of negative advantages, too.

    l = -min(min(r, delta) A, clip(r, 1 - eps_low, 1 + eps_high) A)

It equals the dual clip with c = delta. Source: INTELLECT-2 arXiv 2505.07291.
"""

from __future__ import annotations

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import ppo_clip
from asyncrl.algo.needs import needs, weighed_by_advantage


@needs("proximal")
@weighed_by_advantage
def two_sided_clip(
    inputs: LossInputs, *, eps_low: float = 0.2, eps_high: float = 0.2, delta: float = 4.0
) -> LossOutputs:
    """`-min(min(r, delta) A, clip(r) A)`, as the dual clip with `c = delta`."""
    return ppo_clip(inputs, eps_low=eps_low, eps_high=eps_high, dual_clip=delta)
