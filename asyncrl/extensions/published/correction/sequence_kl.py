"""Drop whole sequences whose divergence from the behavior policy is too large.

    k2_t = log² rho / 2,  k3_t = rho - 1 - log rho,  rho = pi_old / mu
    keep sequence i  if  agg_t k_t <= upper,  agg the mean, sum or maximum over its tokens

Both estimate KL(mu || pi_old) and are never negative. Source: verl `seq_mean_k3` and its relatives. (With k1 the mean
and the sum are the ratio bounds of `mis_geometric` and `mis_product`.) AReaL's `kl_k3` is the estimate of the other
direction, with 1 / rho in place of rho.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio, to_tokens


def sequence_divergence(log_rho: Tensor, mask: Tensor, estimator: str, agg: str) -> Tensor:
    """[B] estimated divergence of each sequence, 0 of an empty one."""
    if estimator not in ("k2", "k3"):
        raise ValueError(f"estimator must be 'k2' or 'k3', got {estimator!r}")
    token = 0.5 * log_rho**2 if estimator == "k2" else bounded_ratio(log_rho) - 1 - log_rho
    token = torch.where(mask, token, 0.0)
    if agg == "max":
        return token.amax(-1)
    if agg not in ("mean", "sum"):
        raise ValueError(f"agg must be 'mean', 'sum' or 'max', got {agg!r}")
    return token.sum(-1) / (mask.sum(-1).clamp(min=1) if agg == "mean" else 1)


@needs("behavior")
def sequence_kl(
    inputs: LossInputs,
    *,
    upper: float,
    estimator: Literal["k2", "k3"] = "k3",
    agg: Literal["mean", "sum", "max"] = "mean",
) -> Tensor:
    """[B,T] 1 for the tokens of kept sequences, 0 for those of dropped ones."""
    found = sequence_divergence(inputs.mismatch_log_ratio, inputs.mask, estimator, agg)
    return to_tokens((found <= upper).to(found.dtype), inputs.mask)
