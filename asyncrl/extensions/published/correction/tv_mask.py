"""Total-variation mask (VACO): in sequences that drifted, drop the tokens whose update would drift further.

    tv_i = mean_t |rho - 1|;  drop t  if  tv_i > delta  and  sign(log rho_t) A_t > 0
    weight = min(rho, cap), 0 where dropped

Source: open-instruct. rho = pi_old / mu.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio


def tv_drop(log_rho: Tensor, advantages: Tensor, mask: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """`(drop [B,T] bool, tv [B])`."""
    deviation = (bounded_ratio(log_rho) - 1).abs() * mask
    tv = deviation.sum(-1) / mask.sum(-1).clamp(min=1)
    further = log_rho.sign() * advantages > 0
    return further & (tv > delta).unsqueeze(-1) & mask.bool(), tv


@needs("behavior")
def tv_mask(inputs: LossInputs, *, delta: float = 0.25, cap: float = 2.0) -> Tensor:
    """[B,T] truncated ratio, 0 on dropped tokens."""
    log_rho = inputs.mismatch_log_ratio
    drop, _ = tv_drop(log_rho, inputs.need("advantages"), inputs.mask, delta)
    weight = bounded_ratio(log_rho).clamp(max=cap) * inputs.mask
    return torch.where(drop, 0.0, weight)
