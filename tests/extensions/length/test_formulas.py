"""Rewards for length, on numbers worked out by hand."""

import pytest

from asyncrl.extensions.length.adaptive import adaptive
from asyncrl.extensions.length.at_most import at_most
from asyncrl.extensions.length.exact import exact


@pytest.mark.parametrize(
    ("reward", "tokens", "target", "expected"),
    [
        (1.0, 1000, 1000, 1.0),
        (1.0, 500, 1000, 0.85),  # 1 - 0.0003 * 500
        (1.0, 1500, 1000, 0.85),
        (0.0, 1200, 1000, -0.06),
    ],
)
def test_the_distance_from_what_was_asked_for_is_subtracted(reward, tokens, target, expected):
    assert exact(reward, tokens, target, alpha=0.0003) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reward", "tokens", "expected"),
    [
        (1.0, 1000, 0.5),  # just as many as were asked for
        (1.0, 0, 0.8),  # 0.0003 * 1000 + 0.5
        (1.0, 2000, 0.2),
        (1.0, 2700, 0.0),  # 0.0003 * -1700 + 0.5 = -0.01
        (2.0, 0, 1.6),
        (0.0, 0, 0.0),  # a wrong answer earns nothing by being short
    ],
)
def test_a_right_answer_is_worth_less_the_nearer_it_comes_to_the_limit(reward, tokens, expected):
    assert at_most(reward, tokens, 1000, alpha=0.0003, delta=0.5) == pytest.approx(expected)


def test_more_room_than_the_slope_needs_is_worth_no_more_than_the_reward():
    assert at_most(1.0, 0, 4000, alpha=0.0003, delta=0.5) == 1.0


def test_tokens_cost_by_the_share_that_is_solved():
    # p = 2 / 4: a token costs 0.2 / 1000 * 0.5.
    found = adaptive([1, 0, 1, 0], [True, False, True, False], [100, 200, 300, 1000], 0.2, 1000)
    assert found == pytest.approx([1 - 0.01, -0.02, 1 - 0.03, -0.1])


def test_tokens_of_a_task_that_nobody_solves_cost_as_if_one_had():
    assert adaptive([0.0] * 4, [False] * 4, [1000, 0, 0, 0], 0.2, 1000) == pytest.approx([-0.05, 0, 0, 0])
    assert adaptive([1.0] * 4, [True] * 4, [1000, 0, 0, 0], 0.2, 1000) == pytest.approx([0.8, 1, 1, 1])
    assert adaptive([], [], [], 0.2, 1000) == []
