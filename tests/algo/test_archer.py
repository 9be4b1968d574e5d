"""ArCHer with two value heads, on numbers worked out by hand."""

import torch

from asyncrl.algo.advantage.archer import archer
from asyncrl.algo.advantage_batch import AdvantageBatch


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
        "twin_values": torch.tensor([[0.5, 9.0, 9.0, 0.25]], dtype=torch.float64),
        "twin_bootstrap_values": torch.tensor([1.0], dtype=torch.float64),
    }
    return AdvantageBatch(**fields | changes)


def test_the_smaller_target_is_compared_with_the_smaller_value():
    # gamma 0.5. Targets of the first head: 0.5 + 0.25 = 0.75 and 1 + 0.25 = 1.25; of the second: 0.5 + 0.125 = 0.625
    # and 1 + 0.5 = 1.5. The smaller values are 0.25 and 0.25.
    found = archer(batch(), gamma=0.5, twin=True)
    assert found.returns.tolist() == [[0.75, 0.75, 0.0, 1.25]]
    assert found.twin_returns.tolist() == [[0.625, 0.625, 0.0, 1.5]]
    assert found.advantages.tolist() == [[0.375, 0.375, 0.0, 1.0]]


def test_two_equal_heads_are_as_one():
    one = batch()
    same = batch(twin_values=one.values, twin_bootstrap_values=one.bootstrap_values)
    for gamma in (0.5, 0.95):
        alone, both = archer(one, gamma=gamma), archer(same, gamma=gamma, twin=True)
        torch.testing.assert_close(both.advantages, alone.advantages)
        torch.testing.assert_close(both.twin_returns, alone.returns)
        assert alone.twin_returns is None


def test_nothing_follows_the_end_of_an_episode():
    found = archer(batch(truncated=torch.tensor([False])), gamma=0.5, twin=True)
    assert found.returns[0, 3] == found.twin_returns[0, 3] == 1.0


def test_what_follows_is_worth_what_the_slow_copy_says():
    slow = {
        "slow_values": torch.tensor([[8.0, 9.0, 9.0, 0.75]], dtype=torch.float64),
        "slow_bootstrap_values": torch.tensor([0.25], dtype=torch.float64),
    }
    # gamma 0.5. Targets 0.5 + 0.375 = 0.875 and 1 + 0.125 = 1.125, over the critic's own 0.25 and 0.5.
    found = archer(batch(**slow), gamma=0.5, slow=True)
    assert found.returns.tolist() == [[0.875, 0.875, 0.0, 1.125]]
    assert found.advantages.tolist() == [[0.625, 0.625, 0.0, 0.625]]
    assert found.twin_returns is None
    # The slow second head: targets 0.5 + 0.5 = 1 and 1. The smaller values are 0.25 and 0.25.
    slow |= {
        "twin_slow_values": torch.tensor([[8.0, 9.0, 9.0, 1.0]], dtype=torch.float64),
        "twin_slow_bootstrap_values": torch.tensor([0.0], dtype=torch.float64),
    }
    both = archer(batch(**slow), gamma=0.5, twin=True, slow=True)
    assert both.returns.tolist() == [[0.875, 0.875, 0.0, 1.125]]
    assert both.twin_returns.tolist() == [[1.0, 1.0, 0.0, 1.0]]
    assert both.advantages.tolist() == [[0.625, 0.625, 0.0, 0.75]]
