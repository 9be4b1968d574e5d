"""Intervals and pass@k against numbers worked out by hand."""

import math

import pytest

from asyncrl.evaluation.statistics import clustered_mean, pass_at_k, pass_hat_k, t_quantile, wilson


def test_the_mean_is_over_tasks_and_the_interval_over_task_means():
    found = clustered_mean({"a": [1, 1], "b": [0, 0], "c": [1, 0], "d": [1]})
    assert found.mean == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    half = 3.182446 * math.sqrt((0.375**2 + 0.625**2 + 0.125**2 + 0.375**2) / 3 / 4)
    assert found.ci_high - found.mean == pytest.approx(half, rel=5e-3)


def test_one_binary_sample_a_task_gives_wilsons_interval():
    found = clustered_mean({str(i): [float(i < 8)] for i in range(10)})
    assert (found.mean, found.tasks) == (0.8, 10)
    assert (found.ci_low, found.ci_high) == pytest.approx((0.490162, 0.943318), abs=1e-5)


def test_wilson_stays_inside_zero_and_one_at_the_edges():
    assert wilson(0, 20) == pytest.approx((0.0, 0.161125), abs=1e-5)
    assert wilson(20, 20) == pytest.approx((0.838875, 1.0), abs=1e-5)


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (99, 1.98422)]
)
def test_the_t_quantile_is_that_of_the_tables(degrees, value):
    assert t_quantile(0.975, degrees) == pytest.approx(value, rel=4e-3)


def test_pass_at_k_is_unbiased_and_needs_enough_samples():
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert pass_at_k(5, 2, 2) == pytest.approx(1 - 3 / 10)
    assert pass_at_k(5, 5, 3) == 1.0
    assert pass_hat_k(5, 3, 2) == pytest.approx(3 / 10)
    with pytest.raises(ValueError, match="needs at least 4 samples a task, got 3"):
        pass_at_k(3, 1, 4)


def test_nothing_to_average_is_an_error():
    with pytest.raises(ValueError, match="no task"):
        clustered_mean({"a": []})
