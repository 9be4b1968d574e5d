"""ArCHer's targets, on numbers worked out by hand."""

import torch

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.extensions.published.advantage.archer import archer


def batch(**changes):
    """One row of two turns, of two tokens and one, that a limit cut off; the turns earn 0.5 and 1."""
    fields = {
        "rewards": torch.tensor([1.5], dtype=torch.float64),
        "group": torch.zeros(1, dtype=torch.long),
        "mask": torch.tensor([[True, True, False, True]]),
        "turn_ids": torch.tensor([[0, 0, -1, 1]]),
        "turn_rewards": [[0.5, 1.0]],
        "truncated": torch.tensor([True]),
        "values": torch.tensor([[0.25, 9.0, 9.0, 0.5]], dtype=torch.float64),
        "bootstrap_values": torch.tensor([0.5], dtype=torch.float64),
    }
    return AdvantageBatch(**fields | changes)


def test_the_target_of_a_turn_is_its_reward_and_what_the_next_state_is_worth():
    # gamma 0.5: 0.5 + 0.25 = 0.75 and 1 + 0.25 = 1.25, over the values 0.25 and 0.5.
    found = archer(batch(), gamma=0.5)
    assert found.returns.tolist() == [[0.75, 0.75, 0.0, 1.25]]
    assert found.advantages.tolist() == [[0.5, 0.5, 0.0, 0.75]]


def test_nothing_follows_the_end_of_an_episode():
    found = archer(batch(truncated=torch.tensor([False])), gamma=0.5)
    assert found.returns[0, 3] == 1.0
