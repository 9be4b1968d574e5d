"""Decoupled PPO: the trust region around a recent policy, the data from an older one.

    l = sg[rho] max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high)),  r = pi / pi_prox,  rho = pi_prox / mu

Sources: "Batch size-invariance for policy optimization" arXiv 2110.00641; AReaL arXiv 2505.24298.
`behavior_weight_cap` bounds rho: `cap_action` "drop" removes the token from the loss (AReaL), "clamp"
truncates it. The denominators keep counting dropped tokens. Without a cap, rho is only held finite (log rho
within ±20). Identity: this equals `max(-A r_b, -A clip(r_b, rho (1 - eps), rho (1 + eps)))`, the surrogate
of PPO-EWMA and of rollout replay (`behavior_clip` below), because rho > 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import clipped_surrogate, ppo_clip
from asyncrl.algo.metrics import extreme_over, mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio


def behavior_weight(inputs: LossInputs, cap: float | None, action: str) -> Tensor:
    """[B,T] weight rho after the cap, without gradient; 0 on masked and dropped tokens."""
    rho = bounded_ratio(inputs.mismatch_log_ratio)
    if cap is not None:
        if action == "drop":
            rho = torch.where(rho > cap, 0.0, rho)
        elif action == "clamp":
            rho = rho.clamp(max=cap)
        else:
            raise ValueError(f"cap_action must be 'drop' or 'clamp', got {action!r}")
    return rho * inputs.mask


@needs("proximal", "behavior")
@weighed_by_advantage
def decoupled_ppo(
    inputs: LossInputs,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    behavior_weight_cap: float | None = None,
    cap_action: Literal["drop", "clamp"] = "drop",
) -> LossOutputs:
    """Decoupled PPO; the weight is part of the loss, so it takes no TIS correction."""
    weight = behavior_weight(inputs, behavior_weight_cap, cap_action)
    inner = ppo_clip(inputs, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip)
    metrics = inner.metrics | {
        "behavior_weight/mean": mean_over(weight, inputs.mask),
        "behavior_weight/max": extreme_over(weight, inputs.mask),
        "behavior_weight/dropped_fraction": mean_over(weight == 0, inputs.mask),
    }
    return LossOutputs(inner.token_loss * weight, metrics, inner.tensors | {"weight": weight})


@needs("proximal", "behavior")
@weighed_by_advantage
def behavior_clip(inputs: LossInputs, *, eps_low: float = 0.2, eps_high: float = 0.2) -> LossOutputs:
    """The same objective on r_b = pi / mu with moving bounds: PPO-EWMA, rollout replay."""
    rho = bounded_ratio(inputs.mismatch_log_ratio)
    # The product, not exp(logp - behavior_logp): the clamps then act as in `decoupled_ppo`.
    behavior_ratio = bounded_ratio(inputs.log_ratio) * rho
    loss, binds = clipped_surrogate(
        behavior_ratio, inputs.need("advantages"), rho * (1 - eps_low), rho * (1 + eps_high)
    )
    metrics = {
        "clip_fraction": mean_over(binds, inputs.mask),
        "behavior_weight/mean": mean_over(rho, inputs.mask),
        "behavior_weight/max": extreme_over(rho, inputs.mask),
    }
    tensors = {"clipped": binds & inputs.mask, "weight": rho * inputs.mask}
    return LossOutputs(loss * inputs.mask, metrics, tensors)
