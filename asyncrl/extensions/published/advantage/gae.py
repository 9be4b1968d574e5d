"""Generalised advantage estimation over tokens, skipping observations.

    on sampled tokens, backwards:  δ_t = r_t + gamma V⁺ - V_t,  Â_t = δ_t + gamma lam Â⁺,
                                   then V⁺ <- V_t, Â⁺ <- Â_t
    on all others:                 (V⁺, Â⁺) pass through
    returns = Â + V

Source: arXiv 1506.02438; verl, AReaL, NeMo-RL. SkyRL, slime and ROLL treat observations as time steps,
which is this function with an all-ones mask (`skip_observations: false`). Past the last token V⁺ is 0 where
the episode ended and the bootstrap value where a limit cut it off. Advantages are not whitened here; use
`normalize`. VAPO (arXiv 2504.05118): lam = 1 - 1 / (alpha L) per sequence, clamped to [0, 1], with lam 1
for the critic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs


def gae_tokens(
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float,
    lam: float | Tensor,
    bootstrap: Tensor | None = None,
) -> Tensor:
    """[B,T] Â. Masked positions hold the Â passing through them; multiply by `mask`.

    `lam` may be per sequence [B]; `bootstrap` [B] is the value after the last position.
    """
    advantages = torch.zeros_like(values)
    next_value = torch.zeros_like(values[:, 0]) if bootstrap is None else bootstrap.to(values.dtype)
    running = torch.zeros_like(next_value)
    for t in reversed(range(values.shape[1])):
        sampled = mask[:, t].bool()
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(sampled, delta + gamma * lam * running, running)
        next_value = torch.where(sampled, values[:, t], next_value)
        advantages[:, t] = running
    return advantages


def length_adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """[B] `1 - 1 / (alpha L)`, clamped to [0, 1]; 0 for empty sequences."""
    return (1 - 1 / (alpha * lengths.clamp(min=1))).clamp(0, 1)


def end_values(batch: AdvantageBatch) -> Tensor | None:
    """[B] value after the last token: the given bootstrap where truncated, 0 where the episode ended."""
    return ends_where_cut(batch, batch.bootstrap_values)


def ends_where_cut(batch: AdvantageBatch, bootstrap: Tensor | None) -> Tensor | None:
    """[B] `bootstrap` where a limit cut the episode off, 0 where it ended; None where nothing is known."""
    if batch.truncated is None or bootstrap is None:
        return None
    return torch.where(batch.truncated.bool(), bootstrap, 0.0)


@needs("values")
def gae(
    batch: AdvantageBatch,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    critic_lam: float | None = None,
    length_adaptive_alpha: float | None = None,
    skip_observations: bool = True,
) -> AdvantageOutputs:
    """Token-level GAE. `critic_lam` sets the λ of the critic's targets; by default both share λ."""
    values, rewards = batch.need("values"), batch.token_rewards()
    mask = batch.mask if skip_observations else torch.ones_like(batch.mask)
    actor_lam: float | Tensor = lam
    if length_adaptive_alpha is not None:
        actor_lam = length_adaptive_lambda(batch.lengths.to(values.dtype), length_adaptive_alpha)
        critic_lam = 1.0 if critic_lam is None else critic_lam
    end = end_values(batch)
    advantages = gae_tokens(rewards, values, mask, gamma, actor_lam, end)
    targets = advantages if critic_lam is None else gae_tokens(rewards, values, mask, gamma, critic_lam, end)
    return AdvantageOutputs(advantages * batch.mask, (targets + values) * batch.mask)
