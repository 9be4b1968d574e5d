"""Evaluation statistics against numbers computed by hand or taken from tables."""

import math
import random
from itertools import combinations

import pytest

from asyncrl.evaluation.statistics import (
    clustered_mean,
    effective_size,
    pass_at_k,
    pass_hat_k,
    wilson,
)


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


@pytest.mark.parametrize("values", [[0.2, 0.4], [1.0], [0.0, 1.0, 1.0]])
def test_one_task_says_nothing_about_the_spread(values):
    interval = clustered_mean({"a": values})
    assert interval.mean == pytest.approx(sum(values) / len(values))
    assert (interval.ci_low, interval.ci_high) == (None, None)


def test_tasks_that_end_alike_count_once_however_often_they_are_sampled():
    assert effective_size([1.0] * 20, 80) == pytest.approx(20)
    assert effective_size([1.0] * 10 + [0.0] * 10, 80) == pytest.approx(20)
    all_right = clustered_mean({f"t{i}": [1.0] * 4 for i in range(20)})
    assert (all_right.ci_low, all_right.ci_high) == pytest.approx((0.8389, 1.0), abs=1e-4)


def test_the_effective_size_grows_with_the_variance_within_tasks():
    # z^2 = 3.8415: p = 0.5, W = 4 * 0.25 / 7.8415 / 0.25 = 0.51011, 4 / 0.48989 = 8.1651.
    assert effective_size([0.5] * 4, 1000) == pytest.approx(8.1651, abs=1e-4)
    assert effective_size([0.5] * 4, 8) == 8, "at most the samples there are"
    # Two samples each that are independent: half of the tasks mixed, a quarter right, a quarter wrong.
    assert effective_size([0.5] * 500 + [1.0] * 250 + [0.0] * 250, 2000) == pytest.approx(2000, rel=0.01)


def test_intervals_of_successes_lie_within_0_and_1_and_move_with_every_failure():
    def interval(failures):
        outcomes = {f"t{i:02d}": [0.0 if i < failures else 1.0, 1.0, 1.0, 1.0] for i in range(20)}
        found = clustered_mean(outcomes)
        return found.ci_low, found.ci_high

    found = [interval(failures) for failures in range(21)]
    assert all(0 <= low < high <= 1 for low, high in found)
    # p = (19.75 + 1.9207) / 23.8415 = 0.90895, W = 0.1875 / 23.8415 / 0.082760 = 0.095030, size 22.1002.
    assert found[1] == pytest.approx(wilson(0.9875 * 22.1002, 22.1002), abs=1e-5)
    highs = [high for _, high in found]
    assert highs == sorted(highs, reverse=True)


@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say_when_samples_of_a_task_are_alike():
    rng = random.Random(0)
    # Near 1 the interval is wider than it need be.
    for mean, alike, at_most in ((0.5, 4.0, 0.97), (0.9, 4.0, 0.99), (0.97, 20.0, 1.0)):
        covered = 0
        for _ in range(1000):
            tasks = {}
            for i in range(50):
                rate = rng.betavariate(mean * alike, (1 - mean) * alike)
                tasks[f"t{i}"] = [float(rng.random() < rate) for _ in range(4)]
            interval = clustered_mean(tasks)
            covered += interval.ci_low <= mean <= interval.ci_high
        assert 0.93 <= covered / 1000 <= at_most, (mean, alike, covered)


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
