"""The Minimax Exploiter's reward: how little the policy that it is trained against expects of the state it is left in.

    R_k = -gamma V(s_k)   s_k the state after turn k, if the main policy is to move in it; V that policy's own critic
    R_k = r_k             the game's reward, after any other turn: one that ends the game

In a zero-sum game what is good for one side is bad for the other, so the main policy's critic also values the
exploiter's moves, from the first game on.

Source: Bairamian et al. 2023, arXiv 2311.17190, where the value is the largest action value of the main agent in s_k.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence


def minimax_rewards(
    rewards: Sequence[float], values: Sequence[float | None], gamma: float
) -> tuple[float, ...]:
    """Return the rewards [K] of an exploiter's turns.

    rewards: [K] those of the game. values: [K] the main policy's value of the state after each turn; None where it is
    not to move next.
    """
    return tuple(
        reward if value is None else -gamma * value for reward, value in zip(rewards, values, strict=True)
    )
