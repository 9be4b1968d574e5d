"""How much of a hint a group's failures without it ask for."""

import pytest

from asyncrl.algo.curation.hint_length import hint_turns
from asyncrl.types import FailureClass
from tests.train.factories import trajectory


def episodes(rewards):
    return [trajectory("t", i, reward=reward) for i, reward in enumerate(rewards)]


@pytest.mark.parametrize(
    ("rewards", "whole", "turns"),
    [
        # ceil(2/4 * 5) = ceil(2.5); ceil(1/3 * 3) is 1 without a rounding error; all failed: one turn is left.
        ([1.0, 0.0, 1.0, 0.0], 5, 3),
        ([1.0, 1.0, 0.0], 3, 1),
        ([0.0, 0.0], 5, 4),
        ([0.0, 0.0], 1, 1),
        ([1.0, 1.0], 5, 0),
        ([0.0], 0, 0),
    ],
)
def test_the_share_of_failures_is_the_share_of_the_hint_rounded_up_but_its_last_turn(rewards, whole, turns):
    assert hint_turns(episodes(rewards), whole) == turns


def test_failed_episodes_say_nothing_and_without_any_other_the_first_turn_is_given():
    broken = trajectory("t", 3, failure=FailureClass.INFRASTRUCTURE)
    assert hint_turns([*episodes([1.0, 1.0]), broken], 4) == 0
    assert hint_turns([broken], 4) == 1
    assert hint_turns([], 0) == 0
