"""The clip of PPO around the behavior policy, as a weight: a token stops counting once the policy has moved far enough.

    w_t = 0             if A_t > 0 and rho_t > 1 + eps_high,  or A_t < 0 and rho_t < 1 - eps_low
          min(rho_t, C) otherwise                             rho = exp(clamp(log pi_old - log mu, ±20))

At the step's start this is the gradient of PPO's and GRPO's surrogate, whose ratio is to the policy that sampled
(arXiv 1707.06347, 2402.03300: eps 0.2), with the truncation of TIS in place of a ratio without bound. Truncation alone
keeps pushing tokens of stale data in the direction in which the policy has already moved, those that follow an action
which it no longer takes among them; nothing in the data answers until fresh episodes arrive.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.loss.ppo import clipped_surrogate
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio


@needs("behavior")
def behavior_band(
    inputs: LossInputs, *, eps_low: float = 0.2, eps_high: float = 0.2, cap: float = 2.0
) -> Tensor:
    """[B,T] truncated ratio, 0 on tokens that the policy has moved from mu as their advantage asks, beyond the band."""
    rho = bounded_ratio(inputs.mismatch_log_ratio)
    _, binds = clipped_surrogate(rho, inputs.need("advantages"), 1 - eps_low, 1 + eps_high)
    return torch.where(binds | ~inputs.mask, 0.0, rho.clamp(max=cap))
