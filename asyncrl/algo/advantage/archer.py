"""ArCHer: a critic over utterances.

    Q(s_k, a_k) -> r_k + gamma (1 - done) V_target(s_{k+1}),  A_k = Q(s_k, a_k) - V(s_k) for the turn's tokens

    twin: Q_i = r_k + gamma V_i(s_{k+1}) for two value heads,  A_k = min(Q_1, Q_2) - min(V_1, V_2)

Source: arXiv 2402.19446 (gamma 0.9..0.95). The paper trains twin Q and V heads off-policy, with targets from a slow
copy. Here Q is the one-step target of its value head, which equals turn-level GAE with lam 0, and with `twin` there are
two heads, each trained on its own target as in the paper. The smaller of both keeps a state that one head overrates
from being sought.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage.gae import end_values, ends_where_cut
from asyncrl.algo.advantage.gae_turn import gae_turn, turn_gae
from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs


def utterance_target(rewards: Tensor, next_values: Tensor, done: Tensor, gamma: float) -> Tensor:
    """[N] critic target of each utterance; `next_values` from the target network."""
    return rewards + gamma * (1 - done) * next_values


def utterance_advantage(q: Tensor, v: Tensor) -> Tensor:
    """[N] `Q - V`; with twin heads pass the minimum of each pair."""
    return q - v


@needs("values", "turns")
@needs("twin_values", twin=True)
def archer(batch: AdvantageBatch, *, gamma: float = 0.95, twin: bool = False) -> AdvantageOutputs:
    """Utterance-level advantages and critic targets, those of each head with `twin`."""
    if not twin:
        return gae_turn(batch, gamma=gamma, lam=0.0)
    turn_ids = torch.where(batch.mask, batch.need("turn_ids"), -1)
    targets, values = [], []
    for head, end in (
        (batch.need("values"), end_values(batch)),
        (batch.need("twin_values"), ends_where_cut(batch, batch.twin_bootstrap_values)),
    ):
        above, target = turn_gae(batch.token_rewards(), head, turn_ids, gamma, 0.0, end)
        targets.append(target)
        # Of the turn's first token.
        values.append(target - above)
    advantages = utterance_advantage(torch.minimum(*targets), torch.minimum(*values))
    return AdvantageOutputs(
        advantages * batch.mask, targets[0] * batch.mask, twin_returns=targets[1] * batch.mask
    )
