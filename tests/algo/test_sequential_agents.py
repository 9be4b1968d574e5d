"""Sequential updates of agents, on numbers worked out by hand."""

import math

import pytest
import torch

from asyncrl.algo.sequential_agents import CAP, rollout_ratios, update_order, weights


def test_the_main_agent_is_updated_first_and_the_others_by_name():
    assert update_order(["b", "", "a", "b", ""]) == [[1, 4], [2], [0, 3]]


def test_what_an_agent_said_in_a_rollout_has_one_ratio():
    ratios = rollout_ratios(torch.tensor([math.log(1.5), math.log(0.8), 0.0]), ["x", "x", "y"])
    assert ratios == pytest.approx({"x": 1.2, "y": 1.0})


def test_a_ratio_is_bounded_from_both_sides():
    ratios = rollout_ratios(torch.tensor([5.0, -5.0]), ["x", "y"])
    assert ratios == pytest.approx({"x": CAP, "y": 1 / CAP})


def test_rollouts_in_which_the_earlier_agent_said_nothing_keep_their_weight():
    assert weights({"x": 1.5}, ["y", "x", "x"]).tolist() == [1.0, 1.5, 1.5]
