"""Evaluation statistics against numbers computed by hand or taken from tables."""

import math
from itertools import combinations

import pytest

from asyncrl.evaluation.statistics import clustered_mean, pass_at_k, pass_hat_k, t_quantile, wilson


def test_wilson_gives_the_interval_of_the_textbook():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20) == pytest.approx((0.8389, 1.0), abs=1e-4)


def test_single_binary_samples_get_the_wilson_interval():
    interval = clustered_mean({f"t{i}": [1.0 if i < 8 else 0.0] for i in range(10)})
    assert (interval.mean, interval.tasks) == (0.8, 10)
    assert (interval.ci_low, interval.ci_high) == wilson(8, 10)


def test_samples_are_averaged_within_tasks_first():
    interval = clustered_mean({"a": [1.0] * 100, "b": [0.0, 0.0], "c": [0.5, 1.0, 0.0]})
    assert interval.mean == pytest.approx(0.5)
    half = 4.302653 * 0.5 / math.sqrt(3)  # t with 2 degrees; the deviation of 1, 0, 0.5 is 0.5
    assert (interval.ci_low, interval.ci_high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)


def test_repeating_samples_of_the_same_tasks_does_not_narrow_the_interval():
    few = clustered_mean({"a": [1.0, 0.0], "b": [1.0, 1.0], "c": [0.0, 0.0], "d": [1.0, 0.0]})
    many = clustered_mean({"a": [1.0, 0.0] * 50, "b": [1.0] * 100, "c": [0.0] * 100, "d": [1.0, 0.0] * 50})
    assert (few.ci_low, few.ci_high) == pytest.approx((many.ci_low, many.ci_high))


def test_tasks_without_values_do_not_count_and_none_at_all_is_refused():
    assert clustered_mean({"a": [0.25], "b": [], "c": [0.75]}).tasks == 2
    with pytest.raises(ValueError, match="no task has a value"):
        clustered_mean({"a": []})


def test_one_task_says_nothing_about_the_spread():
    interval = clustered_mean({"a": [0.2, 0.4]})
    assert interval.mean == pytest.approx(0.3)
    assert (interval.ci_low, interval.ci_high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("degrees", "expected", "error"),
    [(1, 12.7062, 1e-3), (2, 4.3027, 1e-4), (4, 2.7764, 0.01), (10, 2.2281, 1e-3), (99, 1.9842, 1e-4)],
)
def test_t_quantiles_are_those_of_the_table(degrees, expected, error):
    assert t_quantile(0.975, degrees) == pytest.approx(expected, abs=error)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 1), (4, 1, 2), (5, 2, 3), (6, 0, 2), (3, 3, 2)])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_success(n, c, k):
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_more_samples_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"pass@5 needs at least 5 samples a task, got 4"):
        pass_at_k(4, 2, 5)
    with pytest.raises(ValueError, match=r"pass\^5 needs at least 5"):
        pass_hat_k(4, 2, 5)
