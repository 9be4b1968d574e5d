"""VAPO's loss: the clip-higher surrogate, and imitation of the successes.

    L = L_clip + positive_coef · Σ_{i in T} Σ_t -log pi / Σ_{i in T} L_i,  T the sequences with a positive score

Source: VAPO, arXiv 2504.05118 (positive_coef 0.1, eps 0.2 / 0.28; scores of 1 and -1). The second mean is over the
tokens of T in the whole step, whatever the micro-batch holds: under `token_mean`, as in the paper, exactly so.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs, positive_tokens
from asyncrl.algo.loss.ppo import dapo_clip
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs, step_statistics
from asyncrl.algo.ops import masked_mean


def share_of_step(inputs: LossInputs) -> dict[str, Tensor]:
    """The share of the step's tokens that are of successes, for `step_statistics`."""
    return {"vapo_positive_share": masked_mean(positive_tokens(inputs).to(inputs.logp.dtype), inputs.mask)}


@needs("proximal", "scores")
@step_statistics(share_of_step)
def vapo(
    inputs: LossInputs,
    *,
    positive_coef: float = 0.1,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float | None = 10.0,
) -> LossOutputs:
    """Clip-higher plus the likelihood of successes."""
    outputs = dapo_clip(inputs, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip)
    positive = positive_tokens(inputs)
    share = inputs.statistics.get("vapo_positive_share")
    share = share_of_step(inputs)["vapo_positive_share"] if share is None else share
    # A mean over all tokens divides by more than there are of successes. Without any, nothing is added.
    imitation = -inputs.logp * positive / share.clamp(min=1 / 2**52)
    metrics = outputs.metrics | {"positive/nll": mean_over(-inputs.logp, positive)}
    return LossOutputs(outputs.token_loss + positive_coef * imitation, metrics, outputs.tensors)
