"""Answers that are voted on: which are one."""

import pytest

from asyncrl.extensions.answer_rewards.ballot import ballot


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("7", "7.0"),
        ("1/2", "0.5"),
        ("1,000", "1000"),
        (r"\frac{1}{2}", "0.5"),
        ("18", "18 km"),
        ("Paris", "Paris"),
    ],
)
def test_one_answer_in_two_forms_is_one(one, other):
    assert ballot(one) == ballot(other) is not None


@pytest.mark.parametrize(
    ("one", "other"), [("7", "8"), ("Paris", "London"), ("0.333", "1/3"), ("x + 1", "x - 1")]
)
def test_two_answers_are_two(one, other):
    assert ballot(one) != ballot(other)


@pytest.mark.parametrize("nothing", [None, "", " "])
def test_no_answer_is_no_vote(nothing):
    assert ballot(nothing) is None
