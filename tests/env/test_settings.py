"""Checks of an environment's settings name what is wrong and what is allowed."""

import pytest

from asyncrl.env.settings import one_of, share, whole_number


def test_right_values_are_returned():
    assert (whole_number("n", 3, 1, 5), one_of("k", "a", ("a", "b")), share("s", 1)) == (3, "a", 1.0)


@pytest.mark.parametrize("value", [0, 6, 2.5, True, "3", None])
def test_an_integer_of_the_range_is_asked_for(value):
    with pytest.raises(ValueError, match=r"n: must be an integer from 1 to 5, got "):
        whole_number("n", value, 1, 5)


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "0.5", None, float("nan")])
def test_a_share_is_a_number_from_0_to_1(value):
    with pytest.raises(ValueError, match=r"s: must be a number from 0 to 1, got "):
        share("s", value)


def test_a_choice_is_one_of_those_that_are_named():
    with pytest.raises(ValueError, match=r"k: must be one of a, b, got 'c'"):
        one_of("k", "c", ("a", "b"))
