"""Supervised fine-tuning on sampled or demonstrated tokens: `l = -log pi`.

For phases that alternate with RL (Entropulse) set it on the model's own successes.
"""

from __future__ import annotations

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import reads_no_rewards


@reads_no_rewards
def sft(inputs: LossInputs) -> LossOutputs:
    """Negative log-likelihood; reads neither advantages nor other policies."""
    return LossOutputs(-inputs.logp * inputs.mask, {"nll": mean_over(-inputs.logp, inputs.mask)})
