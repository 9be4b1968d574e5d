"""GSPO: one importance ratio per sequence, clipped as a whole.

    s_i = exp(Σ_t m log r / L_i),  l = max(-A s, -A clip(s, 1 - eps_low, 1 + eps_high)),  mean over sequences

Source: arXiv 2507.18071 (eps 3e-4 / 4e-4). Written in the token form s_{i,t} = sg[s_i] pi / sg[pi], which
has the same gradient, -A s / (L B) per token, and permits token-level advantages. Aggregate it with
`seq_mean_token_mean`; a token mean would weigh sequences by length. log s is clamped to at most 10 (verl).
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import clipped_surrogate
from asyncrl.algo.metrics import extreme_over, mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import mean_log_ratio

MAX_LOG_RATIO = 10.0


def token_form(logp: Tensor, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """`(ratio [B,T], s [B])`: the sequence ratio with the gradient of the token's own log-probability."""
    log_s = mean_log_ratio(log_ratio.detach(), mask)
    ratio = (logp - logp.detach() + log_s.unsqueeze(-1)).clamp(max=MAX_LOG_RATIO).exp()
    return ratio, log_s.clamp(max=MAX_LOG_RATIO).exp()


@needs("proximal")
@weighed_by_advantage
def gspo(inputs: LossInputs, *, eps_low: float = 3e-4, eps_high: float = 4e-4) -> LossOutputs:
    """Sequence-level clip in token form."""
    ratio, s = token_form(inputs.logp, inputs.log_ratio, inputs.mask)
    loss, binds = clipped_surrogate(ratio, inputs.need("advantages"), 1 - eps_low, 1 + eps_high)
    live = inputs.mask.any(-1)
    metrics = {
        "clip_fraction": mean_over(binds, inputs.mask),
        "sequence_ratio/mean": mean_over(s, live),
        "sequence_ratio/max": extreme_over(s, live),
        "kl/proximal_to_current": mean_over(-inputs.log_ratio, inputs.mask),
    }
    tensors = {"clipped": binds & inputs.mask, "sequence_ratio": s}
    return LossOutputs(loss * inputs.mask, metrics, tensors)
