"""ArCHer: a critic over utterances.

    Q(s_k, a_k) -> r_k + gamma (1 - done) V_target(s_{k+1}),  A_k = Q(s_k, a_k) - V(s_k) for the turn's tokens

    twin: Q_i = r_k + gamma V_i(s_{k+1}) for two value heads,  A_k = min(Q_1, Q_2) - min(V_1, V_2)
    slow: V(s_{k+1}) from a copy of the critic that moves a tenth of the way towards it after each step

Source: arXiv 2402.19446 (gamma 0.9..0.95). The paper trains twin Q and V heads off-policy, with targets from a slow
copy. Here Q is the one-step target of its value head, which equals turn-level GAE with lam 0, and with `twin` there are
two heads, each trained on its own target as in the paper. The smaller of both keeps a state that one head overrates
from being sought; the slow copy keeps a head from chasing its own estimates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage.gae import ends_where_cut
from asyncrl.algo.advantage.gae_turn import turn_gae
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
@needs("slow_values", slow=True)
def archer(
    batch: AdvantageBatch, *, gamma: float = 0.95, twin: bool = False, slow: bool = False
) -> AdvantageOutputs:
    """Utterance-level advantages and critic targets, those of each head with `twin`, from a slow copy with `slow`."""
    turn_ids = torch.where(batch.mask, batch.need("turn_ids"), -1)
    found = []
    for head in ("", "twin_") if twin else ("",):
        name = f"{head}slow_" if slow else head
        end = ends_where_cut(batch, getattr(batch, f"{name}bootstrap_values"))
        own, following = batch.need(f"{head}values"), batch.need(f"{name}values")
        found.append(turn_gae(batch.token_rewards(), own, turn_ids, gamma, 0.0, end, following))
    if not twin:
        ((advantages, target),) = found
        return AdvantageOutputs(advantages * batch.mask, target * batch.mask)
    targets = [target for _, target in found]
    # Of the turn's first token.
    values = [target - above for above, target in found]
    advantages = utterance_advantage(torch.minimum(*targets), torch.minimum(*values))
    return AdvantageOutputs(
        advantages * batch.mask, targets[0] * batch.mask, twin_returns=targets[1] * batch.mask
    )
