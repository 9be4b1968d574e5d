"""Trackers learn the baselines of SPO and SPIRAL by hand-computed amounts."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from asyncrl.extensions.published.advantage.spiral import spiral
from asyncrl.extensions.published.trackers import BaselineTracker, RoleBaselines, mean_drift, prompt_key
from asyncrl.train.step.step_batch import build_step_batch, to_advantage_batch
from asyncrl.train.step.step_tensors import StepTensors
from tests.train.factories import group, trajectory
from tests.train.one_step import Learner


def test_a_prompts_belief_moves_with_its_rewards_and_is_shared_by_its_epochs():
    tracker = BaselineTracker()
    first = build_step_batch([group("00000000-p", [1.0])], 0, 0)
    again = build_step_batch([group("00000007-p", [0.0])], 0, 0)
    assert tracker.baselines(first).tolist() == [0.5]
    tracker.update(first, torch.zeros(1))
    # No drift keeps 0.96 of (0.5, 0.5), then the reward is added: 1.48 of 1.96.
    assert tracker.baselines(again).tolist() == [pytest.approx(1.48 / 1.96)]


def test_a_policy_that_moved_far_forgets_faster():
    near, far = BaselineTracker(), BaselineTracker()
    batch = build_step_batch([group("p", [1.0])], 0, 0)
    near.update(batch, torch.tensor([0.0]))
    far.update(batch, torch.tensor([1.0]))
    assert far.beliefs["p"] == (pytest.approx(1.4375), pytest.approx(0.4375))
    assert near.beliefs["p"] == (pytest.approx(1.48), pytest.approx(0.48))


def test_a_reward_outside_the_unit_interval_is_refused_by_name():
    batch = build_step_batch([group("p", [1.5])], 0, 0)
    with pytest.raises(ValueError, match=r"task p: a tracked baseline needs rewards in \[0, 1\], got 1.5"):
        BaselineTracker().baselines(batch)


@pytest.mark.parametrize(
    ("task_id", "key"),
    [("00000012-maze-3", "maze-3"), ("maze-3", "maze-3"), ("7", "7"), ("2023-aime-3", "2023-aime-3")],
)
def test_a_prompts_key_leaves_out_its_place_in_the_plan(task_id, key):
    assert prompt_key(trajectory(task_id)) == key


def test_problems_of_a_task_file_are_told_apart_by_their_whole_ids():
    tracker = BaselineTracker(numbered=False)
    batch = build_step_batch([group("20230101-aime", [1.0]), group("20240101-aime", [0.0])], 0, 0)
    tracker.update(batch, torch.tensor([0.0, 0.0]))
    assert set(tracker.beliefs) == {"20230101-aime", "20240101-aime"}


def test_single_rollout_presets_learn_their_baselines_while_they_train(tiny_model):
    learner = Learner(tiny_model, {"preset": "spo"})
    learner.step()
    beliefs = learner.controls.trackers[0].beliefs
    assert set(beliefs) == {"t0", "t1", "t2"}
    assert sum(a + b for a, b in beliefs.values()) > 3


def test_each_role_has_a_running_mean_of_its_own_and_returns_are_scored_before_they_enter_it():
    tracker = RoleBaselines()
    episodes = [
        dataclasses.replace(trajectory("t", i, reward=reward), info={"agent": agent} if agent else {})
        for i, (agent, reward) in enumerate([("", 1.0), ("", 1.0), ("second", -1.0), ("second", 1.0)])
    ]
    batch = build_step_batch([dataclasses.replace(group("t", [0.0]), trajectories=tuple(episodes))], 0, 0)
    # 0, then 0.05 of the 1 before; the second player's are its own.
    assert tracker.baselines(batch).tolist() == pytest.approx([0.0, 0.05, 0.0, -0.05])
    tracker.learn(batch, StepTensors())
    env = batch.groups[0].task.env
    assert tracker.means == pytest.approx({f"{env}/": 0.0975, f"{env}/second": 0.0025})
    seen = to_advantage_batch(batch, {"role_baselines": tracker.baselines(batch)})
    advantages = spiral(seen)[:, 0].tolist()
    assert advantages == pytest.approx([1 - 0.0975, 1 - 0.142625, -1.0025, 1.047625])


def test_drift_is_the_mean_over_sampled_tokens_only():
    log_ratio = torch.tensor([[1.0, -3.0, 50.0], [0.5, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert mean_drift(log_ratio, mask).tolist() == [2.0, 0.5]
