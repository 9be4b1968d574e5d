"""Kimi k1.5 mirror descent: `l = -A log pi + tau/2 log²(pi / mu)`, mu the behavior policy.

Source: arXiv 2501.12599 (tau 0.1). The quadratic term holds the policy near the one that sampled.
"""

from __future__ import annotations

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs


@needs("behavior")
def kimi(inputs: LossInputs, *, tau: float = 0.1) -> LossOutputs:
    """Policy mirror descent on tokens."""
    log_ratio = inputs.behavior_log_ratio
    loss = -inputs.need("advantages") * inputs.logp + 0.5 * tau * log_ratio**2
    return LossOutputs(
        loss * inputs.mask, {"behavior_log_ratio/squared": mean_over(log_ratio**2, inputs.mask)}
    )
