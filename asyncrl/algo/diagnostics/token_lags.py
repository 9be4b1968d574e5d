"""Age of tokens in policy versions: `lag = current_version - version`, sampled tokens only."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.diagnostics.ess import moments
from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import Metrics, extreme_over, mean_over
from asyncrl.algo.ops import bounded_ratio

LAG_BINS: tuple[tuple[str, int, int], ...] = (
    ("lag_0", 0, 0),
    ("lag_1", 1, 1),
    ("lag_2", 2, 2),
    ("lag_3_4", 3, 4),
    ("lag_5_8", 5, 8),
    ("lag_9_up", 9, 1 << 30),
)
"""Name, smallest and largest lag. Fixed, so that every rank reports the same names."""


def token_lag(versions: Tensor, current_version: int) -> Tensor:
    """[B,T] integer lag; negative versions (nothing sampled) give lag 0 and must be masked."""
    return torch.where(versions >= 0, current_version - versions, 0)


def metrics_by_lag(inputs: LossInputs, outputs: LossOutputs, weight: Tensor | None = None) -> Metrics:
    """Clip fraction, mismatch KL, ESS, correction weight and advantage per lag bin."""
    if inputs.versions is None:
        return {}
    lag = token_lag(inputs.versions, inputs.current_version)
    found: Metrics = {
        "lag/mean": mean_over(lag.double(), inputs.mask),
        "lag/max": extreme_over(lag.double(), inputs.mask),
    }
    clipped = outputs.tensors.get("clipped")
    has_ratio = inputs.proximal_logp is not None and inputs.behavior_logp is not None
    for name, low, high in LAG_BINS:
        picked = inputs.mask & (lag >= low) & (lag <= high)
        found[f"{name}/token_fraction"] = mean_over(picked, inputs.mask)
        if clipped is not None:
            found[f"{name}/clip_fraction"] = mean_over(clipped, picked)
        if has_ratio:
            log_rho = inputs.mismatch_log_ratio
            found[f"{name}/mismatch_kl_k1"] = mean_over(-log_rho, picked)
            found |= moments(f"{name}/ess", bounded_ratio(log_rho), picked)
        if weight is not None:
            found[f"{name}/weight"] = mean_over(weight, picked)
        if inputs.advantages is not None:
            found[f"{name}/advantage"] = mean_over(inputs.advantages, picked)
            found[f"{name}/advantage_abs"] = mean_over(inputs.advantages.abs(), picked)
    return found
