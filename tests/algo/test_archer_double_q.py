"""ArCHer with heads that value actions, on numbers worked out by hand."""

import pytest
import torch

from asyncrl.algo.advantage.archer_double_q import archer_double_q, of_turns
from asyncrl.algo.advantage_batch import MissingInputError
from asyncrl.algo.objective import build_objective
from tests.algo.test_archer import batch as turns

WRONG = 9.0
"""Where nothing is to be read."""


def batch(**changes):
    """Two turns, of two tokens and one, that a limit cut off; the turns earn 0.5 and 1."""
    fields = {
        "values": [[0.25, WRONG, WRONG, 0.5]],
        "slow_values": [[WRONG, WRONG, WRONG, 0.75]],
        "q_values": [[WRONG, 1.0, WRONG, 0.75]],
        "twin_q_values": [[WRONG, 0.5, WRONG, 1.0]],
        "q_slow_values": [[WRONG, 0.375, WRONG, 0.125]],
        "twin_q_slow_values": [[WRONG, 0.625, WRONG, 0.0]],
        "slow_bootstrap_values": [0.25],
    }
    return turns(**{name: torch.tensor(x, dtype=torch.float64) for name, x in fields.items()} | changes)


def test_the_smaller_value_of_the_action_is_compared_with_that_of_the_state():
    # At the turns' last tokens min(1, 0.5) = 0.5 and min(0.75, 1) = 0.75; at their first 0.25 and 0.5.
    assert archer_double_q(batch()).advantages.tolist() == [[0.25, 0.25, 0.0, 0.25]]


def test_actions_are_worth_their_reward_and_what_the_slow_copy_says_of_the_next_state():
    # gamma 0.5: 0.5 + 0.75 / 2 = 0.875 and 1 + 0.25 / 2 = 1.125, whatever the critic itself says.
    found = archer_double_q(batch(), gamma=0.5)
    assert found.q_returns.tolist() == found.twin_q_returns.tolist() == [[0.875, 0.875, 0.0, 1.125]]


def test_with_lam_a_later_reward_reaches_the_turns_before_it_at_once():
    # One-step targets 0.875 and 1.125 (above); the second is 0.375 more than the slow copy said, of which the first
    # turn gets gamma lam = 1/4.
    found = archer_double_q(batch(), gamma=0.5, lam=0.5)
    assert found.q_returns.tolist() == found.twin_q_returns.tolist() == [[0.96875, 0.96875, 0.0, 1.125]]
    assert found.advantages.tolist() == archer_double_q(batch(), gamma=0.5).advantages.tolist()


def test_a_state_is_worth_what_the_smaller_slow_head_says_of_the_action():
    # min(0.375, 0.625) and min(0.125, 0).
    assert archer_double_q(batch()).returns.tolist() == [[0.375, 0.375, 0.0, 0.0]]


def test_nothing_follows_the_end_of_an_episode():
    found = archer_double_q(batch(truncated=torch.tensor([False])), gamma=0.5)
    assert found.q_returns.tolist() == [[0.875, 0.875, 0.0, 1.0]]


def test_with_an_exact_critic_the_advantage_is_that_of_the_action():
    """One turn and two actions that earn 1 and 0, each taken by half: V is 1/2, the advantages are 1/2 and -1/2."""
    two = {
        "rewards": torch.tensor([1.0, 0.0], dtype=torch.float64),
        "group": torch.zeros(2, dtype=torch.long),
        "mask": torch.ones(2, 2, dtype=torch.bool),
        "turn_ids": torch.zeros(2, 2, dtype=torch.long),
        "turn_rewards": [[1.0], [0.0]],
        "truncated": torch.zeros(2, dtype=torch.bool),
        "slow_bootstrap_values": torch.ones(2, dtype=torch.float64),
        "bootstrap_values": None,
        "twin_values": None,
        "twin_bootstrap_values": None,
        "values": torch.full((2, 2), 0.5, dtype=torch.float64),
        "slow_values": torch.full((2, 2), 0.5, dtype=torch.float64),
    }
    exact = torch.tensor([[0.5, 1.0], [0.5, 0.0]], dtype=torch.float64)
    heads = dict.fromkeys(("q_values", "twin_q_values", "q_slow_values", "twin_q_slow_values"), exact)
    found = archer_double_q(batch(**two, **heads))
    assert found.advantages.tolist() == [[0.5, 0.5], [-0.5, -0.5]]
    # The targets are the fixed point: those of the actions their rewards, those of the state 1/2 on average.
    assert found.q_returns.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert found.returns[:, 0].mean() == 0.5


def test_what_is_missing_is_named():
    with pytest.raises(MissingInputError, match=r"AdvantageBatch\.twin_q_values"):
        archer_double_q(batch(twin_q_values=None))


def test_values_of_a_turn_are_those_at_its_ends():
    ids = torch.tensor([[-1, 0, 0, -1, 2], [1, 1, 1, -1, -1]])
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]])
    assert of_turns(values, ids, last=False).tolist() == [[0, 2, 2, 0, 5], [6, 6, 6, 0, 0]]
    assert of_turns(values, ids, last=True).tolist() == [[0, 3, 3, 0, 5], [8, 8, 8, 0, 0]]
    assert of_turns(values, torch.full_like(ids, -1), last=True).abs().max() == 0


def test_the_preset_needs_a_critic_with_both_kinds_of_heads_and_its_slow_copy():
    assert {"values", "q_values", "slow_values", "turns"} <= build_objective(
        {"preset": "archer_double_q"}
    ).needs
