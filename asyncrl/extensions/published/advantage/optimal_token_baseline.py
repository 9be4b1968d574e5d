"""Optimal token baseline: per position, the return weighted by accumulated gradient energy.

    w_t = (1 - 2 pi_t + Σ_v pi²) · rho_t² (rho_t 1 without importance weights),  W_t = Σ_{s <= t} m w_s
    B_t = Σ_i G_{i,t} W_{i,t} m / (Σ_i W_{i,t} m + eps) over the group,  A_t = (G_t - B_t) m

Sources: verl `optimal_token_baseline` and `tir_optimal_token_baseline` (eps 1e-8). The first takes the columns of the
padded batch for positions; with observations between turns a column holds tokens of different places, so it refuses
those. The second numbers the sampled tokens of each rollout; for rollouts of one turn both are the same. Where a single
longest rollout outlives all others its baseline would be its own return; `handle_zero_tail` sets it to 0 from the
position equal to the second-longest length on. A lone row has no baseline.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.groups import dense
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio, reward_to_go
from asyncrl.errors import ConfigError


def token_baseline(returns: Tensor, energy: Tensor, mask: Tensor, eps: float, zero_tail: bool) -> Tensor:
    """[G,T] baselines of one group from returns, W and mask, each [G,T]."""
    if returns.shape[0] < 2:
        return torch.zeros_like(returns)
    weight = energy * mask
    baseline = ((returns * weight).sum(0) / (weight.sum(0) + eps)).expand_as(returns).clone()
    if zero_tail:
        second, longest = mask.sum(-1).sort().values[-2:].long().tolist()
        if longest > second:
            baseline[mask.sum(-1).argmax(), second:] = 0.0
    return baseline


def otb_advantages(
    token_rewards: Tensor,
    mask: Tensor,
    group: Tensor,
    logp: Tensor,
    sum_pi_squared: Tensor,
    rho: Tensor | None = None,
    eps: float = 1e-8,
    handle_zero_tail: bool = True,
) -> tuple[Tensor, Tensor]:
    """`(advantages, returns)` [B,T]."""
    m = mask.to(token_rewards.dtype)
    returns = reward_to_go(token_rewards * m)
    step_energy = 1 - 2 * logp.exp() + sum_pi_squared
    if rho is not None:
        step_energy = step_energy * rho**2
    energy = (step_energy * m).cumsum(-1)
    baselines = torch.zeros_like(returns)
    g = dense(group)
    for index in g.unique():
        rows = (g == index) & mask.any(-1)
        baselines[rows] = token_baseline(returns[rows], energy[rows], m[rows], eps, handle_zero_tail)
    return (returns - baselines) * m, returns


def sampled_first(mask: Tensor) -> Tensor:
    """[B,T] the columns of each row, those of sampled tokens before all others, both in order."""
    return (~mask).long().argsort(dim=-1, stable=True)


def _sampled_apart(mask: Tensor) -> bool:
    """True where the sampled tokens of some row are not one stretch."""
    starts = mask[:, 1:] & ~mask[:, :-1]
    return bool((starts.sum(-1) + mask[:, 0] > 1).any())


@needs("sum_pi_squared", "proximal")
def optimal_token_baseline(
    batch: AdvantageBatch, *, eps: float = 1e-8, handle_zero_tail: bool = True, use_is_weights: bool = False
) -> AdvantageOutputs:
    """[B,T] advantages by column. `use_is_weights` needs the behavior log-probabilities.

    Raises ConfigError where an episode has several turns.
    """
    if _sampled_apart(batch.mask):
        raise ConfigError(
            "algo.advantage: optimal_token_baseline compares rollouts by column, and these have observations between "
            "their turns; use tir_optimal_token_baseline"
        )
    columns = torch.arange(batch.mask.shape[1], device=batch.mask.device).expand_as(batch.mask)
    return _compared(batch, columns, eps, handle_zero_tail, use_is_weights)


@needs("sum_pi_squared", "proximal")
def tir_optimal_token_baseline(
    batch: AdvantageBatch, *, eps: float = 1e-8, handle_zero_tail: bool = True, use_is_weights: bool = False
) -> AdvantageOutputs:
    """[B,T] advantages by number of the sampled token. `use_is_weights` needs the behavior log-probabilities."""
    return _compared(batch, sampled_first(batch.mask), eps, handle_zero_tail, use_is_weights)


def _compared(
    batch: AdvantageBatch, columns: Tensor, eps: float, handle_zero_tail: bool, use_is_weights: bool
) -> AdvantageOutputs:
    """Advantages and returns with the batch's columns in the order `columns` [B,T]."""

    def ordered(x: Tensor) -> Tensor:
        return x.gather(1, columns)

    old = batch.need("old_logp")
    rho = bounded_ratio(old - batch.need("behavior_logp")) if use_is_weights else None
    advantages, returns = otb_advantages(
        ordered(batch.token_rewards()),
        ordered(batch.mask),
        batch.group,
        ordered(old),
        ordered(batch.need("sum_pi_squared")),
        None if rho is None else ordered(rho),
        eps,
        handle_zero_tail,
    )
    back = columns.argsort(dim=-1)
    return AdvantageOutputs(advantages.gather(1, back), returns.gather(1, back) * batch.mask)
