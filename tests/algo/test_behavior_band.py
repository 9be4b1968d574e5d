"""The clip of PPO around the behavior policy, as a weight."""

import math
from dataclasses import replace

import pytest
import torch

from asyncrl.algo.correction.behavior_band import behavior_band
from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.loss.ppo import ppo_clip
from asyncrl.algo.presets import known_presets


def inputs(ratios: list[float], advantages: list[float]) -> LossInputs:
    """One row of tokens whose ratio of the policy at the step's start to the one that sampled is given."""
    behavior = torch.full((1, len(ratios)), -1.0)
    logp = behavior + torch.tensor([[math.log(r) for r in ratios]])
    return LossInputs(
        logp=logp,
        proximal_logp=logp,
        behavior_logp=behavior,
        advantages=torch.tensor([advantages]),
        mask=torch.ones(1, len(ratios), dtype=torch.bool),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (1.0, 1.0, 1.0),
        (1.19, 1.0, 1.19),
        (1.21, 1.0, 0.0),  # moved towards a success already
        (0.5, 1.0, 0.5),  # moved away from a success: pushed back
        (0.01, 1.0, 0.01),
        (0.81, -1.0, 0.81),
        (0.79, -1.0, 0.0),  # moved away from a failure already
        (1.5, -1.0, 1.5),  # moved towards a failure: pushed back
        (7.0, -1.0, 2.0),  # by no more than the cap
        (7.0, 0.0, 2.0),
    ],
)
def test_a_token_stops_counting_once_the_policy_has_moved_as_its_advantage_asks(ratio, advantage, weight):
    assert behavior_band(inputs([ratio], [advantage])).item() == pytest.approx(weight, rel=1e-6)


def test_the_bounds_and_the_cap_are_settings():
    given = inputs([1.25, 1.29, 0.75, 0.65, 9.0], [1.0, 1.0, -1.0, -1.0, -1.0])
    weight = behavior_band(given, eps_low=0.3, eps_high=0.28, cap=3.0)
    assert weight.tolist() == [pytest.approx([1.25, 0.0, 0.75, 0.0, 3.0], rel=1e-6)]


def test_tokens_that_were_not_sampled_weigh_nothing():
    given = inputs([1.0, 1.0], [1.0, 1.0])
    masked = replace(given, mask=torch.tensor([[True, False]]))
    assert behavior_band(masked).tolist() == [[1.0, 0.0]]


def test_at_the_steps_start_the_gradient_is_that_of_the_clip_around_the_policy_that_sampled():
    ratios, advantages = [0.3, 0.9, 1.1, 1.6, 0.3, 0.9, 1.1, 1.6], [1.0] * 4 + [-1.0] * 4
    given = inputs(ratios, advantages)
    logp = given.logp.clone().requires_grad_()
    ours = replace(given, logp=logp)
    published = replace(given, logp=logp, proximal_logp=given.behavior_logp)
    weighted = ppo_clip(ours).token_loss * behavior_band(ours)
    assert torch.allclose(
        torch.autograd.grad(weighted.sum(), logp)[0],
        torch.autograd.grad(ppo_clip(published).token_loss.sum(), logp)[0],
        rtol=1e-5,
    )


def test_without_staleness_the_default_objective_weighs_every_token_by_1():
    assert known_presets()["grpo"]["corrections"] == [{"name": "behavior_band"}]
    assert behavior_band(inputs([1.0, 1.0], [1.0, -1.0])).tolist() == [[1.0, 1.0]]
