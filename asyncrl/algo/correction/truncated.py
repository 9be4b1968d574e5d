"""Truncated importance sampling (TIS): bounded weights for engine mismatch and staleness.

    token:     w_t = min(rho_t, C)            rho = exp(clamp(log pi_old - log mu, ±20))
    two-sided: w_t = clip(rho_t, low, C)
    sequence:  w_i = min(prod_t rho_t, C), the same for every token

A correction maps `LossInputs` to a weight [B,T] without gradient, which multiplies the token loss *after* the
clip. Zero means the token is rejected. Sources: "Your Efficient RL Framework Secretly Brings You Off-Policy
RL Training" (C = 2); verl, SkyRL, VCPO (sequence, C = 8). `batch_normalize` divides by the mean weight
(verl).
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs, step_statistics
from asyncrl.algo.ops import bounded_ratio, masked_mean, sequence_log_ratio, to_tokens


def mean_of_step(inputs: LossInputs, cap: float, low: float) -> dict[str, Tensor]:
    """The mean weight of the whole step, for `step_statistics`."""
    weight = bounded_ratio(inputs.mismatch_log_ratio).clamp(low, cap)
    return {"token_tis_mean": masked_mean(weight, inputs.mask)}


@needs("behavior")
@step_statistics(mean_of_step, batch_normalize=True)
def token_tis(
    inputs: LossInputs, *, cap: float = 2.0, low: float = 0.0, batch_normalize: bool = False
) -> Tensor:
    """[B,T] `clip(rho, low, cap)`.

    The normaliser is `statistics["token_tis_mean"]` where the step's is known, else this micro-batch's.
    """
    weight = bounded_ratio(inputs.mismatch_log_ratio).clamp(low, cap) * inputs.mask
    if not batch_normalize:
        return weight
    mean = inputs.statistics.get("token_tis_mean", masked_mean(weight, inputs.mask))
    return weight / mean.clamp(min=torch.finfo(weight.dtype).tiny)


@needs("behavior")
def sequence_tis(inputs: LossInputs, *, cap: float = 2.0) -> Tensor:
    """[B,T] `min(product ratio, cap)`, broadcast to the sequence's tokens."""
    log_ratio = sequence_log_ratio(inputs.mismatch_log_ratio, inputs.mask)
    return to_tokens(bounded_ratio(log_ratio).clamp(max=cap), inputs.mask)
