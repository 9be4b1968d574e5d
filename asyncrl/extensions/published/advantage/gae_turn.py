"""GAE with one time step per sampled turn.

    r_k = Σ rewards on the turn's tokens,  V_k = value at its first token
    δ_k = r_k + gamma V_{k+1} - V_k,  Â_k = δ_k + gamma lam Â_{k+1},  the same for all tokens of the turn
    critic target of the turn's tokens: Â_k + V_k

Source: AReaL `gae_timestep_unit=turn`. gamma and lam act once per turn, so long turns are not discounted
away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs
from asyncrl.extensions.published.advantage.gae import end_values


def turn_places(turn_ids: Tensor, *, last: bool = False) -> tuple[Tensor, Tensor]:
    """Where the turns of each row begin, or end: `(slots, places)`, `turn_ids` [B,T] is -1 outside turns.

    slots: [B,T] each token's turn, K outside turns. places: [B,K+1] position of the first, or last, token of each slot,
    T where a row has none.
    """
    batch, width = turn_ids.shape
    # At least one, so that a batch without any turn has a place to gather from.
    num_turns = max(int(turn_ids.max()) + 1 if turn_ids.numel() else 0, 1)
    slots = torch.where(turn_ids >= 0, turn_ids, num_turns).long()
    positions = torch.arange(width, device=turn_ids.device).expand_as(turn_ids)
    places = torch.full((batch, num_turns + 1), width, device=turn_ids.device)
    return slots, places.scatter_reduce(1, slots, positions, "amax" if last else "amin", include_self=False)


def turn_sums(token_rewards: Tensor, values: Tensor, turn_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`(rewards, first-token values, present)` per turn, each [B,K]; `turn_ids` [B,T] is -1 outside turns."""
    width = turn_ids.shape[1]
    slots, places = turn_places(turn_ids)
    first = places[:, :-1]
    rewards = values.new_zeros(places.shape).scatter_add(1, slots, token_rewards.to(values.dtype))
    present = first < width
    return rewards[:, :-1], values.gather(1, first.clamp(max=width - 1)) * present, present


def turn_gae(
    token_rewards: Tensor,
    values: Tensor,
    turn_ids: Tensor,
    gamma: float,
    lam: float,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`(advantages, returns)` [B,T]. Outside turns the advantage is 0 and the return is the value.

    bootstrap: [B] value of what follows the last turn.
    """
    rewards, turn_values, present = turn_sums(token_rewards, values, turn_ids)
    next_value = torch.zeros_like(values[:, 0]) if bootstrap is None else bootstrap.to(values.dtype)
    running = torch.zeros_like(next_value)
    per_turn = torch.zeros_like(turn_values)
    for k in reversed(range(turn_values.shape[1])):
        delta = rewards[:, k] + gamma * next_value - turn_values[:, k]
        running = torch.where(present[:, k], delta + gamma * lam * running, running)
        next_value = torch.where(present[:, k], turn_values[:, k], next_value)
        per_turn[:, k] = running
    inside = turn_ids >= 0
    slots = turn_ids.clamp(min=0).long()
    advantages = torch.where(inside, per_turn.gather(1, slots), 0.0)
    returns = torch.where(inside, advantages + turn_values.gather(1, slots), values)
    return advantages, returns


@needs("values", "turns")
def gae_turn(batch: AdvantageBatch, *, gamma: float = 1.0, lam: float = 1.0) -> AdvantageOutputs:
    """Turn-level GAE."""
    turn_ids = torch.where(batch.mask, batch.need("turn_ids"), -1)
    advantages, returns = turn_gae(
        batch.token_rewards(), batch.need("values"), turn_ids, gamma, lam, end_values(batch)
    )
    return AdvantageOutputs(advantages * batch.mask, returns * batch.mask)
