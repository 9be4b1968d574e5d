"""GRPO for groups of which some rollouts began with a hint: those do not raise the baseline of the others.

    without a hint:  A_i = (R_i - mean_u R) / (std_u R + eps)      over the group's rollouts without a hint
    with a hint:     A_i = (R_i - mean_g R) / (std_g R + eps)      over all of the group

So a success that needed no hint has a larger advantage than one that had it, and a failure in spite of a hint a lower
one than a failure without. Where all rollouts without a hint earn the same, they have no advantage, and hinted ones
still do. Advantages of a group do not sum to 0: hints that help make the sum positive. In a group without hints it is
`grpo`.

Source: this project's own. ADHint (arXiv 2512.13095) likewise weighs rollouts by how difficult they were with and
without a hint, with formulas that are not these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import group_local
from asyncrl.algo.ops import to_tokens


def hinted_scores(rewards: Tensor, group: Tensor, hinted: Tensor, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """[B] advantages of [B] rewards. hinted: [B] bool."""
    scores = grpo_scores(rewards, group, ddof, eps)
    alone = ~hinted
    if bool(alone.any()):
        scores[alone] = grpo_scores(rewards[alone], group[alone], ddof, eps)
    return scores


@group_local
def hinted_grpo(batch: AdvantageBatch, *, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """[B,T] advantages; without `batch.hint_turns` no row was given a hint."""
    turns = batch.hint_turns or [0] * len(batch.rewards)
    hinted = torch.tensor(turns, device=batch.rewards.device) > 0
    return to_tokens(hinted_scores(batch.returns, batch.group, hinted, ddof, eps), batch.mask)
