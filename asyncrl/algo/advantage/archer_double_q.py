"""ArCHer's critic as published: a value of the state and two of the action, each turn a time step.

    Q_i(s_k, a_k) -> r_k + gamma (1 - done) V_slow(s_{k+1})          i = 1, 2
    V(s_k)        -> min(Q_1, Q_2)_slow(s_k, a_k)
    A_k = min(Q_1, Q_2)(s_k, a_k) - V(s_k), the same for all tokens of the turn

V(s_k) is read before the turn's first token and Q(s_k, a_k) at its last, which has read the whole action. Both are
trained on all tokens of the turn, where each knows the action up to there. "slow" is a copy of the critic that moves a
tenth of the way towards it after each step.

`lam` above 0 is ours: the target of an action is then the λ-return of what was played, as in turn-level GAE, so a
reward reaches the first turns at once instead of one turn for each step of the critic and its copy. It is of the policy
that played, so it is for data that are as fresh as those of a bounded staleness.

Source: Zhou et al. 2024, arXiv 2402.19446 (gamma 0.9 to 0.95, slow rate 0.1); the smaller of two critics is TD3's
(arXiv 1802.09477). The released code pairs a V with each Q, V_i -> Q_i, Q_i -> V_i, and subtracts the smaller V. The
paper draws a_k anew from the policy for states of a replay buffer; here it is the action of the rollout, which the
loss's corrections weigh.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage.archer import utterance_advantage
from asyncrl.algo.advantage.gae import ends_where_cut
from asyncrl.algo.advantage.gae_turn import turn_gae, turn_places
from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs


def of_turns(values: Tensor, turn_ids: Tensor, *, last: bool) -> Tensor:
    """[B,T] the value at the first token of each token's turn, or at its last; 0 outside turns (`turn_ids` -1)."""
    slots, places = turn_places(turn_ids, last=last)
    return torch.where(turn_ids >= 0, values.gather(1, places.gather(1, slots)), 0.0)


@needs("values", "turns", "slow_values", "q_values")
def archer_double_q(batch: AdvantageBatch, *, gamma: float = 0.95, lam: float = 0.0) -> AdvantageOutputs:
    """Utterance-level advantages, and the targets of all three heads. `lam` 0 is the paper's one-step target."""
    turn_ids = torch.where(batch.mask, batch.need("turn_ids"), -1)
    end = ends_where_cut(batch, batch.slow_bootstrap_values)
    _, action_target = turn_gae(batch.token_rewards(), batch.need("slow_values"), turn_ids, gamma, lam, end)
    smaller = torch.minimum(batch.need("q_values"), batch.need("twin_q_values"))
    slow_smaller = torch.minimum(batch.need("q_slow_values"), batch.need("twin_q_slow_values"))
    values = of_turns(batch.need("values"), turn_ids, last=False)
    advantages = utterance_advantage(of_turns(smaller, turn_ids, last=True), values)
    action_target = action_target * batch.mask
    return AdvantageOutputs(
        advantages * batch.mask,
        of_turns(slow_smaller, turn_ids, last=True) * batch.mask,
        q_returns=action_target,
        twin_q_returns=action_target,
    )
