"""Comparisons of evaluations: worked out by hand, and held to their error rates by simulation."""

import numpy as np
import pytest

from asyncrl.extensions.benchmarks.comparison import compare, holm


def tasks(values):
    return {f"t{i}": [value] if np.isscalar(value) else list(value) for i, value in enumerate(values)}


def test_differences_are_those_of_task_means_on_shared_tasks():
    first = {"a": [0.0, 1.0], "b": [0.0], "c": [1.0], "only first": [1.0], "empty": []}
    second = {"a": [1.0], "b": [0.0, 0.5], "c": [0.0], "only second": [0.0], "empty": [1.0]}
    found = compare(first, second)
    assert (found.tasks, found.better, found.worse) == (3, 2, 1)
    assert found.difference == pytest.approx((0.5 + 0.25 - 1.0) / 3)


def test_the_p_value_of_few_tasks_is_exact():
    # Of the 2^4 ways to swap four differences of 1, two are as extreme: all one way, all the other.
    assert compare(tasks([0.0] * 4), tasks([1.0] * 4)).p_value == pytest.approx(2 / 16)
    # Differences 1, 2, 3: sums are 6, 4, 2, 0, -0, -2, -4, -6; 4 of 8 have size 4 or more.
    assert compare(tasks([0, 0, 0]), tasks([-1, 2, 3])).p_value == pytest.approx(4 / 8)


def test_checkpoints_that_are_alike_do_not_differ():
    found = compare(tasks([0.0, 1.0, 0.5]), tasks([0.0, 1.0, 0.5]))
    assert (found.difference, found.ci_low, found.ci_high, found.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_the_detectable_difference_is_that_of_the_textbook():
    # Differences -1, 0, 1 repeated: deviation sqrt(20 / 29) over 30 tasks; t quantiles 2.0452 and 0.8542.
    found = compare(tasks([0.0] * 30), tasks([-1.0, 0.0, 1.0] * 10))
    assert found.detectable == pytest.approx((2.0452 + 0.8542) * np.sqrt(20 / 29) / np.sqrt(30), abs=1e-3)


def test_a_comparison_needs_tasks_in_common():
    with pytest.raises(ValueError, match="two tasks that both evaluations have, got 1"):
        compare({"a": [1.0], "b": [1.0]}, {"a": [1.0], "c": [0.0]})


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def outcomes(rng, number, gain, samples=4):
    """Two evaluations of `number` tasks of unequal difficulty, the second better by `gain`."""
    difficulty = rng.beta(2, 2, number) * (1 - gain)
    return (tasks(rng.random((number, samples)) < (difficulty + shift)[:, None]) for shift in (0.0, gain))


@pytest.mark.slow
def test_intervals_cover_the_true_difference_and_the_test_keeps_its_level(monkeypatch):
    monkeypatch.setattr("asyncrl.extensions.benchmarks.comparison.RESAMPLES", 999)
    rng, repeats = np.random.default_rng(5), 1000
    found = [compare(*outcomes(rng, 30, 0.1), seed=seed) for seed in range(repeats)]
    covered = np.mean([one.ci_low <= 0.1 <= one.ci_high for one in found])
    # With few samples a task many permutations tie, which makes the test reject less than its level.
    alike = [compare(*outcomes(rng, 30, 0.0, samples=16), seed=seed) for seed in range(repeats)]
    rejected = np.mean([one.p_value <= 0.05 for one in alike])
    # Three standard errors of 1000 repeats are 0.02.
    assert 0.93 <= covered <= 0.97
    assert 0.03 <= rejected <= 0.07
