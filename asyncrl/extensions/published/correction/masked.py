"""Corrections that reject: tokens or sequences whose mismatch ratio rho = pi_old / mu lies outside a band.

| name | weight | source |
|---|---|---|
| icepop | rho inside [low, high], 0 outside | IcePop (Ring-1T), 0.5..5 |
| token_band | 1 inside, 0 outside | verl `token_k1` |
| mis_product | 1 if low <= Π rho <= high | SkyRL, 0.5..2 |
| mis_geometric | 1 if low <= geometric mean <= high | SkyRL, 0.99..1.01 |
| sequence_mask_tis | token rho if low <= geometric mean <= high | NeMo-RL `seq-mask-tis`, 0.999..1.002 |
| sequence_tis_or_drop | Π rho if <= cap, else 0 | TRL `sequence_mask`, 3 |
| outlier_veto | 0 for a sequence with any token outside [low, high] | SkyRL, 1e-4..100 |

Bounds include their end points. verl compares -log rho, so its token bounds apply to mu / pi; `inverted`
does so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio, mean_log_ratio, sequence_log_ratio, to_tokens


def _inside(x: Tensor, low: float, high: float) -> Tensor:
    return (x >= low) & (x <= high)


@needs("behavior")
def icepop(inputs: LossInputs, *, low: float = 0.5, high: float = 5.0) -> Tensor:
    """[B,T] the raw ratio inside the band, 0 outside."""
    rho = bounded_ratio(inputs.mismatch_log_ratio)
    return torch.where(_inside(rho, low, high) & inputs.mask, rho, 0.0)


@needs("behavior")
def token_band(inputs: LossInputs, *, low: float = 0.5, high: float = 2.0, inverted: bool = False) -> Tensor:
    """[B,T] 1 inside the band, 0 outside, without reweighting. `inverted` tests 1 / rho (verl)."""
    log_rho = inputs.mismatch_log_ratio
    ratio = bounded_ratio(-log_rho if inverted else log_rho)
    return (_inside(ratio, low, high) & inputs.mask).to(ratio.dtype)


@needs("behavior")
def mis_product(inputs: LossInputs, *, low: float = 0.5, high: float = 2.0) -> Tensor:
    """[B,T] keep or drop whole sequences by their product ratio."""
    ratio = bounded_ratio(sequence_log_ratio(inputs.mismatch_log_ratio, inputs.mask))
    return to_tokens(_inside(ratio, low, high).to(ratio.dtype), inputs.mask)


@needs("behavior")
def mis_geometric(inputs: LossInputs, *, low: float = 0.99, high: float = 1.01) -> Tensor:
    """[B,T] keep or drop whole sequences by the geometric mean of their token ratios."""
    ratio = bounded_ratio(mean_log_ratio(inputs.mismatch_log_ratio, inputs.mask))
    return to_tokens(_inside(ratio, low, high).to(ratio.dtype), inputs.mask)


@needs("behavior")
def sequence_mask_tis(inputs: LossInputs, *, low: float = 0.999, high: float = 1.002) -> Tensor:
    """[B,T] token ratios, untruncated, of the sequences that `mis_geometric` keeps."""
    return mis_geometric(inputs, low=low, high=high) * bounded_ratio(inputs.mismatch_log_ratio)


def sequence_product_or_drop(log_rho: Tensor, mask: Tensor, cap: float) -> Tensor:
    """[B] product ratio, 0 where it exceeds `cap`."""
    ratio = bounded_ratio(sequence_log_ratio(log_rho, mask))
    return torch.where(ratio <= cap, ratio, 0.0)


@needs("behavior")
def sequence_tis_or_drop(inputs: LossInputs, *, cap: float = 3.0) -> Tensor:
    """[B,T] the sequence's product ratio, 0 where it exceeds `cap`."""
    return to_tokens(sequence_product_or_drop(inputs.mismatch_log_ratio, inputs.mask, cap), inputs.mask)


@needs("behavior")
def outlier_veto(inputs: LossInputs, *, low: float = 1e-4, high: float = 100.0) -> Tensor:
    """[B,T] 0 for every token of a sequence with one outlier, else 1."""
    rho = bounded_ratio(inputs.mismatch_log_ratio)
    fine = (_inside(rho, low, high) | ~inputs.mask).all(-1)
    return to_tokens(fine.to(rho.dtype), inputs.mask)
