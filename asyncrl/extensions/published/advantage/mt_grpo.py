"""MT-GRPO: turn-level credit before the first tool result, outcome credit after it.

    A^T, A^O, A^C = group z-scores of the turn reward, the outcome reward and their sum
    tokens before the first result: A^O + coef A^T;  after it: A^O;  rollouts without a result: A^C everywhere

Source: arXiv 2505.11821 and its code (coef 1, ddof 1, eps 1e-4). From a batch, the outcome reward is that
of the last turn and whatever the turn rewards do not account for; the turn reward is the sum of the earlier
turns'. The first result starts after the first turn's last token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import group_local, needs, zero_where_equal


def turn_credit(
    a_turn: Tensor, a_outcome: Tensor, a_combined: Tensor, mask: Tensor, first_result: Tensor, coef: float
) -> Tensor:
    """[B,T] from three z-scores [B]; `first_result` [B] is the first result's position, -1 for none."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    before = positions < first_result.unsqueeze(-1)
    with_result = a_outcome.unsqueeze(-1) + coef * a_turn.unsqueeze(-1) * before
    credit = torch.where(first_result.unsqueeze(-1) < 0, a_combined.unsqueeze(-1), with_result)
    return credit * mask


def first_result_position(turn_ids: Tensor) -> Tensor:
    """[B] position after the first turn where a second turn follows, else -1."""
    positions = torch.arange(turn_ids.shape[1], device=turn_ids.device)
    last = torch.where(turn_ids == 0, positions, -1).amax(-1)
    return torch.where((turn_ids > 0).any(-1), last + 1, -1)


@needs("turns")
@group_local
@zero_where_equal("rewards", "turn_rewards")
def mt_grpo(batch: AdvantageBatch, *, coef: float = 1.0, eps: float = 1e-4, ddof: int = 1) -> Tensor:
    """[B,T] MT-GRPO advantages."""
    earlier = [sum(turns[:-1]) for turns in batch.need("turn_rewards")]
    turn = batch.rewards.new_tensor(earlier)
    outcome = batch.returns - turn
    a_turn, a_outcome, a_combined = (
        grpo_scores(r, batch.group, ddof, eps) for r in (turn, outcome, turn + outcome)
    )
    first = first_result_position(torch.where(batch.mask, batch.need("turn_ids"), -1))
    return turn_credit(a_turn, a_outcome, a_combined, batch.mask, first, coef)
