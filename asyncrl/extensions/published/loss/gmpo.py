"""GMPO: the geometric mean of token ratios, each clipped in log space on the side that A pushes to.

    A > 0: c_t = min(log r, eps_high);  A < 0: c_t = max(log r, -eps_low)
    s_i = exp(Σ_t m c_t / L_i),  l_i = -A_i s_i,  mean over sequences

Source: arXiv 2507.20673 (eps 0.4 / 0.4 in log space). A_i is the mean token advantage. Aggregate with
`seq_mean_token_mean`: the sequence loss is repeated on its tokens. Tokens with A = 0 count as ratio 1 (verl).
"""

from __future__ import annotations

import torch

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import extreme_over, mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio, mean_log_ratio, to_tokens


@needs("proximal")
@weighed_by_advantage
def gmpo(inputs: LossInputs, *, eps_low: float = 0.4, eps_high: float = 0.4) -> LossOutputs:
    """Geometric-mean policy optimisation."""
    adv, log_ratio = inputs.need("advantages"), inputs.log_ratio
    over = (adv > 0) & (log_ratio > eps_high)
    under = (adv < 0) & (log_ratio < -eps_low)
    clipped = torch.where(over, eps_high, torch.where(under, -eps_low, log_ratio))
    clipped = torch.where(adv == 0, 0.0, clipped)
    ratio = bounded_ratio(mean_log_ratio(clipped, inputs.mask))
    advantage = (adv * inputs.mask).sum(-1) / inputs.mask.sum(-1).clamp(min=1)
    live = inputs.mask.any(-1)
    metrics = {
        "clip_fraction": mean_over(over | under, inputs.mask),
        "sequence_ratio/mean": mean_over(ratio, live),
        "sequence_ratio/max": extreme_over(ratio, live),
    }
    tensors = {"clipped": (over | under) & inputs.mask, "sequence_ratio": ratio.detach()}
    return LossOutputs(to_tokens(-advantage * ratio, inputs.mask), metrics, tensors)
