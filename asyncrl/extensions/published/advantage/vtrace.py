"""V-trace: off-policy corrected values for actor-critic.

    rho'_t = min(rho_t, clip_rho),  c_t = lam min(rho_t, clip_c)
    δ_t = rho'_t (r_t + gamma_t V_{t+1} - V_t)
    v_t = V_t + δ_t + gamma_t c_t (v_{t+1} - V_{t+1})
    A_t = min(rho_t, clip_pg_rho) (r_t + gamma_t v_{t+1} - V_t)

Source: IMPALA, arXiv 1802.01561 (rlax also mixes lam into the target of A; we do not). rho is pi_old / mu
of a token. Products of token ratios vanish quickly, so prefer short horizons or lam < 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import bounded_ratio
from asyncrl.extensions.published.advantage.gae import end_values


def vtrace_targets(
    rewards: Tensor,
    values: Tensor,
    discounts: Tensor,
    rhos: Tensor,
    mask: Tensor,
    bootstrap: Tensor,
    lam: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`(vs, advantages)` [B,T], zero where masked. `discounts` [B,T] is 0 at termination, `bootstrap` [B]."""
    vs, advantages = torch.zeros_like(values), torch.zeros_like(values)
    next_value = next_target = bootstrap.to(values.dtype)
    for t in reversed(range(values.shape[1])):
        sampled = mask[:, t].bool()
        reward, value, discount, rho = rewards[:, t], values[:, t], discounts[:, t], rhos[:, t]
        delta = rho.clamp(max=clip_rho) * (reward + discount * next_value - value)
        target = value + delta + discount * lam * rho.clamp(max=clip_c) * (next_target - next_value)
        advantage = rho.clamp(max=clip_pg_rho) * (reward + discount * next_target - value)
        vs[:, t] = torch.where(sampled, target, 0.0)
        advantages[:, t] = torch.where(sampled, advantage, 0.0)
        next_target = torch.where(sampled, target, next_target)
        next_value = torch.where(sampled, value, next_value)
    return vs, advantages


@needs("values", "behavior", "proximal")
def vtrace(
    batch: AdvantageBatch,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> AdvantageOutputs:
    """V-trace over sampled tokens, with the value past the end 0 where the episode ended."""
    values = batch.need("values")
    rhos = bounded_ratio(batch.need("old_logp") - batch.need("behavior_logp"))
    end = end_values(batch)
    bootstrap = torch.zeros_like(values[:, 0]) if end is None else end
    discounts = torch.full_like(values, gamma)
    vs, advantages = vtrace_targets(
        batch.token_rewards(),
        values,
        discounts,
        rhos,
        batch.mask,
        bootstrap,
        lam,
        clip_rho,
        clip_c,
        clip_pg_rho,
    )
    return AdvantageOutputs(advantages, vs)
