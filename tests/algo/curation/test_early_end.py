"""Which groups have a signal."""

from dataclasses import replace

from asyncrl.algo.curation.early_end import differ, succeeded
from tests.buffer.factories import trajectory


def group(*rewards):
    return [trajectory("t", i, (0,), reward) for i, reward in enumerate(rewards)]


def test_episodes_that_earned_the_same_have_no_signal():
    assert not differ(group(1.0, 1.0))
    assert not differ(group(0.0, 0.0, 0.0))
    assert differ(group(1.0, 0.0))
    assert differ(group(0.0, 0.0, 0.5))


def test_equal_rewards_that_were_earned_in_other_turns_are_a_signal():
    one, other = group(1.0, 1.0)
    assert differ([one, replace(other, turns=(replace(other.turns[0], reward=0.5),))])


def test_the_environments_verdict_counts_before_the_reward():
    solved, failed = group(1.0, 0.0)
    assert (succeeded(solved), succeeded(failed)) == (True, False)
    assert (succeeded(replace(solved, success=False)), succeeded(replace(failed, success=True))) == (
        False,
        True,
    )
