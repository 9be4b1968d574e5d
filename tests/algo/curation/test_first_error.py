"""Failed episodes that are recycled before their first wrong turn."""

from dataclasses import replace

import pytest

from asyncrl.algo.curation.first_error import before_first_error, first_error
from asyncrl.algo.curation.forks import Fork
from asyncrl.types import FailureClass
from tests.algo.curation.test_branch_width import played
from tests.train.factories import trajectory


def episode(*matches, success=False):
    found = played(*[0.5] * len(matches))
    turns = tuple(replace(turn, matches=one) for turn, one in zip(found.turns, matches, strict=True))
    return replace(found, turns=turns, success=success)


@pytest.mark.parametrize(
    ("matches", "turn"),
    [((True, False, False), 1), ((True, True), None), ((None, None), None), ((False,), 0)],
)
def test_the_first_wrong_turn_is_the_one_that_the_environment_names(matches, turn):
    assert first_error(episode(*matches)) == turn


def test_those_that_were_right_longest_come_first_and_again_where_there_are_more_branches():
    episodes = [episode(True, False, True), episode(True, True, False), episode(True, False, success=True)]
    assert before_first_error(episodes, 1) == [Fork(1, 2)]
    assert before_first_error(episodes, 3) == [Fork(1, 2), Fork(0, 1), Fork(1, 2)]


def test_what_was_wrong_from_the_start_or_never_played_is_not_recycled():
    broken = trajectory("t", 0, failure=FailureClass.ENVIRONMENT)
    assert before_first_error([episode(False, True), episode(True, True), broken], 2) == []
