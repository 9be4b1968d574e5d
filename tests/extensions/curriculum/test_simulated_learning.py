"""Curricula on a simulated learner: tasks from solved to hopeless, and skills that grow with the signal of a group."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from asyncrl.extensions.curriculum import curricula
from asyncrl.extensions.curriculum.simulated_learner import simulate

SEEDS = range(5)
GROUP = 8


def runs(name, **settings):
    return [simulate(curricula.factory(name, settings, GROUP, seed), seed, rate=0.06) for seed in SEEDS]


@pytest.fixture(scope="module")
def uniform():
    return runs("uniform")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in curricula.CURRICULA if name not in ("uniform", "xrpo")])
def test_choosing_tasks_teaches_more_than_uniform_sampling_in_every_seed(name, uniform):
    chosen = runs(name)
    for one, other in zip(chosen, uniform, strict=True):
        assert one.rollouts == other.rollouts
        assert one.informative > other.informative
        assert one.success[-1] > other.success[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), [("xrpo", {}), ("gdro", {"rollouts": "sqrt"})])
def test_moving_rollouts_to_uncertain_tasks_spends_no_more_of_them(name, settings, uniform):
    for one, other in zip(runs(name, **settings), uniform, strict=True):
        assert one.rollouts <= other.rollouts * 1.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["similarity", "v0"])
def test_comparing_tasks_predicts_success_better_than_their_own_few_outcomes(name):
    assert brier(runs(name)) < brier(runs("insight"))


def brier(made):
    found = np.array([pair for run in made for pair in run.predictions])
    return float(((found[:, 0] - found[:, 1]) ** 2).mean())


def test_stages_are_left_one_after_the_other():
    (run,) = [simulate(curricula.factory("staged", {"review": 0.0}, GROUP, 0), 0, rate=0.06)]
    assert statistics.fmean(run.success[-10:]) > statistics.fmean(run.success[:10]) + 0.2
