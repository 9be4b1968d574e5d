"""DRO: REINFORCE with a quadratic pull towards the proximal policy: `l = -(A log pi - beta/2 log² r)`.

Source: "Offline Regularised RL for LLM Alignment", arXiv 2405.19107, in verl's policy-only form.
"""

from __future__ import annotations

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import ratio_metrics
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio


@needs("proximal")
def dro(inputs: LossInputs, *, beta: float = 0.1) -> LossOutputs:
    """Direct reward optimisation on tokens."""
    loss = -(inputs.need("advantages") * inputs.logp - 0.5 * beta * inputs.log_ratio**2)
    return LossOutputs(loss * inputs.mask, ratio_metrics(inputs, bounded_ratio(inputs.log_ratio)))
