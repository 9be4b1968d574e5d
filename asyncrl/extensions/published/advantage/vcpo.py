"""VCPO: the baseline that minimises the variance of the importance-weighted policy gradient.

    b* = Σ w_i² |g_i|² R_i / Σ w_i² |g_i|²,  A_i = R_i - b*, optionally / std_g R (ddof 0)
    g_i = ∇ log pi(trajectory i), w_i = Π_t pi_old / mu

Source: VCPO, mit-han-lab/vcpo. The authors' code measures |g_i| on a loss that already carries the
clipped w_i and then multiplies by w_i² again; `opob_baseline` takes whatever weights it is given, and `vcpo`
follows the paper. It also offers a weighted median and a winsorised mean. Measuring |g_i| costs one
backward per trajectory, so `score` chooses: "gradient" (given norms), "logit" (Σ_t 1 - 2 pi_t + Σ pi², the
logit-gradient proxy), or "length" (|g_i|² in proportion to L_i; the default, free, and not in the paper).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import dense, group_std
from asyncrl.algo.needs import needs, zero_where_equal
from asyncrl.algo.ops import bounded_ratio, sequence_log_ratio, to_tokens


def opob_weights(grad_norm: Tensor, seq_ratio: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
    """[G] `|g|² w² / L²`, leaving out what is None."""
    weights = grad_norm**2
    if seq_ratio is not None:
        weights = weights * seq_ratio**2
    return weights if lengths is None else weights / lengths**2


def opob_baseline(rewards: Tensor, weights: Tensor, agg: str = "mean", eps: float = 0.0) -> Tensor:
    """Scalar baseline of one group: weighted "mean", "median" or "winsorized_mean" (5 % to 95 %).

    0 where all weights are 0.
    """
    total = weights.sum()
    if bool(total == 0):
        return rewards.new_zeros(())
    if agg == "median":
        return weighted_quantile(rewards, weights, 0.5)
    if agg == "winsorized_mean":
        low, high = (weighted_quantile(rewards, weights, q) for q in (0.05, 0.95))
        rewards = rewards.clamp(low, high)
    elif agg != "mean":
        raise ValueError(f"agg must be 'mean', 'median' or 'winsorized_mean', got {agg!r}")
    return (rewards * weights).sum() / (total + eps)


def weighted_quantile(x: Tensor, weights: Tensor, level: float) -> Tensor:
    """Smallest value whose cumulative weight reaches `level` of the total."""
    order = x.argsort(stable=True)
    cumulative = weights[order].cumsum(0)
    reached = (cumulative >= level * weights.sum()).nonzero()
    return x[order][reached[0, 0] if len(reached) else -1]


def scale_by_std(advantages: Tensor, rewards: Tensor, group: Tensor, ddof: int = 0) -> Tensor:
    """[B] divided by the group's reward standard deviation where that exceeds 1e-8."""
    std = group_std(rewards, group, ddof)
    return torch.where(std > 1e-8, advantages / torch.where(std > 1e-8, std, 1.0), advantages)


def _score_norms(batch: AdvantageBatch, score: str) -> Tensor:
    if score == "gradient":
        return batch.need("score_norms")
    if score == "length":
        return batch.lengths.to(batch.rewards.dtype).sqrt()
    energy = (1 - 2 * batch.need("old_logp").exp() + batch.need("sum_pi_squared")) * batch.mask
    return energy.sum(-1).clamp(min=0).sqrt()


@needs("behavior", "proximal")
@needs("sum_pi_squared", score="logit")
@needs("score_norms", score="gradient")
@zero_where_equal("rewards")
def vcpo(
    batch: AdvantageBatch,
    *,
    score: Literal["gradient", "logit", "length"] = "length",
    agg: Literal["mean", "median", "winsorized_mean"] = "mean",
    norm_by_std: bool = True,
    eps: float = 1e-8,
) -> Tensor:
    """[B,T] advantages against the optimal off-policy baseline of each group."""
    rewards, g = batch.returns, dense(batch.group)
    log_rho = batch.need("old_logp") - batch.need("behavior_logp")
    ratio = bounded_ratio(sequence_log_ratio(log_rho, batch.mask))
    weights = opob_weights(_score_norms(batch, score), ratio)
    advantages = torch.zeros_like(rewards)
    for index in g.unique():
        rows = g == index
        if bool(rewards[rows].max() > rewards[rows].min()):
            advantages[rows] = rewards[rows] - opob_baseline(rewards[rows], weights[rows], agg, eps)
    if norm_by_std:
        advantages = scale_by_std(advantages, rewards, batch.group)
    return to_tokens(advantages, batch.mask)
