"""ReMax: the return minus the reward of a greedy rollout of the same prompt.

    A_t = Σ_{t' >= t} r_t' - R_greedy

Source: arXiv 2310.10505. Masked positions are zero (verl leaves padding unmasked).
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import group_local, needs
from asyncrl.algo.ops import reward_to_go


def remax_advantages(token_rewards: Tensor, mask: Tensor, greedy_rewards: Tensor) -> tuple[Tensor, Tensor]:
    """`(advantages, returns)` [B,T]."""
    returns = reward_to_go(token_rewards * mask) * mask
    return (returns - greedy_rewards.unsqueeze(-1)) * mask, returns


@needs("greedy")
@group_local
def remax(batch: AdvantageBatch) -> AdvantageOutputs:
    """[B,T] ReMax advantages."""
    return AdvantageOutputs(
        *remax_advantages(batch.token_rewards(), batch.mask, batch.need("greedy_rewards"))
    )
