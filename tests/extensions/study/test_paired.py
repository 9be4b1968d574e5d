"""Differences between a method and the baseline, seed by seed, on numbers worked out by hand."""

import math

import pytest

from asyncrl.extensions.study.paired import mean_interval, paired_difference, paired_speed


def test_values_are_compared_on_the_seeds_that_both_have():
    found = paired_difference({0: 0.5, 1: 0.6, 2: 0.1}, {0: 0.7, 1: 0.7, 5: 1.0})
    assert (found.seeds, found.higher, found.lower) == (2, 2, 0)
    assert found.mean == pytest.approx(0.15)
    # Of the four ways to swap two pairs, two are as far from zero.
    assert found.p_value == pytest.approx(0.5)


def test_five_seeds_cannot_show_less_than_one_in_sixteen():
    found = paired_difference(dict.fromkeys(range(5), 0.0), {seed: 1.0 + seed for seed in range(5)})
    assert found.p_value == pytest.approx(2 / 2**5)


def test_the_interval_is_students():
    # Differences 1, 2, 3: standard deviation 1, t of 2 degrees of freedom 4.3027.
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))


def test_a_single_seed_shows_no_interval_and_none_in_common_shows_nothing():
    found = paired_difference({3: 0.25}, {3: 0.75})
    assert (found.mean, found.ci_low, found.ci_high) == (0.5, None, None)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_how_many_times_as_fast_is_the_geometric_mean_over_shared_seeds():
    # Twice and eight times as fast: four times, and the logarithms ln 2 and ln 8 are ln 2 from their mean.
    mean, low, high = paired_speed({0: 20.0, 1: 80.0, 2: 5.0}, {0: 10.0, 1: 10.0, 3: 1.0})
    half = 12.7062 * math.log(2)
    assert mean == pytest.approx(4.0)
    assert low == pytest.approx(4.0 * math.exp(-half), rel=1e-4)
    assert high == pytest.approx(4.0 * math.exp(half), rel=1e-4)
    assert paired_speed({0: 6.0}, {0: 4.0}) == (pytest.approx(1.5), None, None)
    with pytest.raises(ValueError, match="no seed"):
        paired_speed({0: 1.0}, {1: 1.0})
