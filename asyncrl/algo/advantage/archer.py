"""ArCHer: a critic over utterances.

    Q(s_k, a_k) -> r_k + gamma (1 - done) V_target(s_{k+1}),  A_k = Q(s_k, a_k) - V(s_k) for the turn's tokens

Source: arXiv 2402.19446 (gamma 0.9..0.95). The paper trains twin Q and V heads off-policy. The estimator
here has one value head, so Q is its own one-step target; that equals turn-level GAE with lam 0.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage.gae_turn import gae_turn
from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs


def utterance_target(rewards: Tensor, next_values: Tensor, done: Tensor, gamma: float) -> Tensor:
    """[N] critic target of each utterance; `next_values` from the target network."""
    return rewards + gamma * (1 - done) * next_values


def utterance_advantage(q: Tensor, v: Tensor) -> Tensor:
    """[N] `Q - V`; with twin heads pass the minimum of each pair."""
    return q - v


@needs("values", "turns")
def archer(batch: AdvantageBatch, *, gamma: float = 0.95) -> AdvantageOutputs:
    """Utterance-level advantages and critic targets."""
    return gae_turn(batch, gamma=gamma, lam=0.0)
