"""Effective sample size of importance weights.

    sequence: w_i = exp(Σ_t m log rho),  ESS = (Σ w)² / (Σ w² + 1e-8),  ratio ESS / B      (VCPO)
    token:    1 / mean_m((w / mean_m w)²), on truncated weights                            (verl)

Both are 1 for on-policy data and fall towards 1/n when one sample dominates. To add up over micro-batches and
ranks the metrics carry the mean of w and of w²; `derive` turns them into `ess/...` once everything is summed.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.metrics import Metrics, mean_over
from asyncrl.algo.ops import bounded_ratio, sequence_log_ratio

SQUARED = "_squared"


def sequence_ess(seq_log_ratio: Tensor, eps: float = 1e-8) -> tuple[Tensor, Tensor, Tensor]:
    """`(weights [B], ESS, ESS / B)` from the summed log-ratios [B]."""
    weights = bounded_ratio(seq_log_ratio)
    ess = weights.sum() ** 2 / ((weights**2).sum() + eps)
    return weights, ess, ess / weights.numel()


def ess_metrics(log_ratio: Tensor, mask: Tensor, threshold: float | None = None) -> Metrics:
    """First and second moments of the token weights (truncated at `threshold`) and sequence weights."""
    token = bounded_ratio(log_ratio)
    token = token if threshold is None else token.clamp(max=threshold)
    sequence = bounded_ratio(sequence_log_ratio(log_ratio, mask))
    live = mask.any(-1)
    return moments("ess/token", token, mask) | moments("ess/sequence", sequence, live)


def moments(name: str, weights: Tensor, mask: Tensor) -> Metrics:
    """The two metrics from which `derive` makes `name`."""
    weights = weights.double()
    return {name: mean_over(weights, mask), name + SQUARED: mean_over(weights**2, mask)}


def derive(values: dict[str, float]) -> dict[str, float]:
    """Replace each pair of moments by the ESS ratio `mean(w)² / mean(w²)`."""
    derived = dict(values)
    for name in values:
        if name.endswith(SQUARED) and name.removesuffix(SQUARED) in values:
            base, square = name.removesuffix(SQUARED), derived.pop(name)
            derived[base] = values[base] ** 2 / square if square > 0 else 0.0
    return derived
