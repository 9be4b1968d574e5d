"""ASymPO: policy gradient on stale data from the current policy alone, each response's loss on the same scale.

    l_t = A (-log pi_t) / sg[mean_t(-log pi_t)]

Source: "ASymPO", arXiv 2606.03070. Under the current policy stale failures have larger losses than successes, so
advantages that add up to zero no longer balance; divided by its mean, each response weighs its advantage. Reads neither
behavior nor proximal log-probabilities: its preset has no correction. Aggregate with `seq_mean_token_mean`.
`least_nll` bounds the divisor where a response is all but certain; the paper's guard is not known to us.
"""

from __future__ import annotations

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import extreme_over, mean_over
from asyncrl.algo.needs import weighed_by_advantage
from asyncrl.algo.ops import mean_log_ratio


@weighed_by_advantage
def asympo(inputs: LossInputs, *, least_nll: float = 1e-3) -> LossOutputs:
    """Negative log-likelihood over its own mean, times the advantage."""
    if least_nll <= 0:
        raise ValueError(f"least_nll must be positive, got {least_nll}")
    mean_nll = mean_log_ratio(-inputs.logp.detach(), inputs.mask)
    scale = mean_nll.clamp(min=least_nll).unsqueeze(-1)
    loss = -inputs.need("advantages") * inputs.logp / scale
    live = inputs.mask.any(-1)
    metrics = {
        "response_nll/mean": mean_over(mean_nll, live),
        "response_nll/max": extreme_over(mean_nll, live),
    }
    return LossOutputs(loss * inputs.mask, metrics, {"response_nll": mean_nll})
