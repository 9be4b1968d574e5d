"""ArCHer: a critic over utterances.

    Q(s_k, a_k) -> r_k + gamma (1 - done) V_target(s_{k+1}),  A_k = Q(s_k, a_k) - V(s_k) for the turn's tokens

Source: arXiv 2402.19446 (gamma 0.9..0.95). The paper trains twin Q and V heads off-policy, with targets from a slow
copy. Here Q is the one-step target of the one value head, which equals turn-level GAE with lam 0.
"""

from __future__ import annotations

import torch

from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.needs import needs
from asyncrl.extensions.published.advantage.gae import ends_where_cut
from asyncrl.extensions.published.advantage.gae_turn import turn_gae


@needs("values", "turns")
def archer(batch: AdvantageBatch, *, gamma: float = 0.95) -> AdvantageOutputs:
    """Utterance-level advantages and critic targets."""
    turn_ids = torch.where(batch.mask, batch.need("turn_ids"), -1)
    end = ends_where_cut(batch, batch.bootstrap_values)
    advantages, target = turn_gae(batch.token_rewards(), batch.need("values"), turn_ids, gamma, 0.0, end)
    return AdvantageOutputs(advantages * batch.mask, target * batch.mask)
