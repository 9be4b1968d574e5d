"""ATPO: one importance ratio per turn, clipped as a whole.

    s_k = exp(mean over the turn's tokens of log r),  s_t = sg[s_k] pi / sg[pi] for the tokens t of turn k
    l = max(-A s, -A clip(s, 1 - eps_low, 1 + eps_high))

Source: AT2PO, arXiv 2601.04767, and its code (eps 3e-3 / 4e-3), which aggregates as `seq_mean_token_mean`. It is
GSPO's token form on turns instead of sequences: with one turn both are equal. The extra `clip_scale` of A2TGPO
multiplies eps by turn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import clipped_surrogate
from asyncrl.algo.metrics import extreme_over, mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.extensions.published.loss.gspo import MAX_LOG_RATIO


def turn_mean(x: Tensor, turn_ids: Tensor, mask: Tensor) -> Tensor:
    """[B,T] mean of `x` over the sampled tokens of each token's turn, 0 where nothing is sampled."""
    slots = torch.where(mask, turn_ids, -1).long() + 1
    table = x.new_zeros(x.shape[0], int(slots.max()) + 1 if slots.numel() else 1)
    total = table.scatter_add(1, slots, x * mask)
    count = table.scatter_add(1, slots, mask.to(x.dtype))
    return (total / count.clamp(min=1)).gather(1, slots) * mask


@needs("proximal", "turns")
@weighed_by_advantage
def atpo(inputs: LossInputs, *, eps_low: float = 3e-3, eps_high: float = 4e-3) -> LossOutputs:
    """Turn-level clip in token form."""
    mask = inputs.mask
    log_s = turn_mean(inputs.log_ratio.detach(), inputs.need("turn_ids"), mask)
    ratio = (inputs.logp - inputs.logp.detach() + log_s).clamp(max=MAX_LOG_RATIO).exp()
    scale = inputs.given("clip_scale")
    scale = torch.ones_like(ratio) if scale is None else scale
    loss, binds = clipped_surrogate(
        ratio, inputs.need("advantages"), 1 - eps_low * scale, 1 + eps_high * scale
    )
    turn_ratio = log_s.clamp(max=MAX_LOG_RATIO).exp() * mask
    metrics = {
        "clip_fraction": mean_over(binds, mask),
        "turn_ratio/mean": mean_over(turn_ratio, mask),
        "turn_ratio/max": extreme_over(turn_ratio, mask),
        "kl/proximal_to_current": mean_over(-inputs.log_ratio, mask),
    }
    return LossOutputs(loss * mask, metrics, {"clipped": binds & mask, "turn_ratio": turn_ratio})
