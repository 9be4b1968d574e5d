"""Which success completes a group without one, and what comes of the group."""

from dataclasses import replace

import numpy as np
import pytest

from asyncrl.extensions.replay.success_pool import (
    as_old_as_may_be,
    as_played,
    best_success,
    completed,
    lacks_success,
    problem,
)
from asyncrl.types import FailureClass, Task
from tests.train.factories import group, trajectory


def test_a_problem_is_what_the_environment_is_given_and_not_the_name_of_the_task():
    data = {"level": 2, "goal": [1, 2]}
    first = Task("00000003-t", "gridworld", 7, data=data)
    again = Task("00000017-t", "gridworld", 7, data=dict(reversed(data.items())))
    assert problem(first) == problem(again)
    for other in (
        replace(first, seed=8),
        replace(first, env="countdown"),
        replace(first, split="test"),
        replace(first, data={"level": 3, "goal": [1, 2]}),
    ):
        assert problem(other) != problem(first)


def test_the_newest_success_is_kept_and_of_equally_new_ones_the_shortest():
    old, long, short = (
        trajectory("t", index=i, turns=turns, reward=1.0, version=version)
        for i, turns, version in ((0, 1, 2), (1, 3, 5), (2, 2, 5))
    )
    assert best_success([old, long, short]) is short
    assert best_success([old, long]) is long
    assert best_success([trajectory("t", reward=0.0), trajectory("t", failure=FailureClass.AGENT)]) is None


@pytest.mark.parametrize("info", [{"rollout": 0}, {"branch_of": 1, "branch_turn": 1}])
def test_rows_that_lean_on_others_of_their_group_are_no_successes_to_keep(info):
    whole = trajectory("t", reward=1.0)
    assert best_success([replace(whole, info=info)]) is None


def test_the_environments_verdict_counts_before_the_reward():
    paid = replace(trajectory("t", reward=0.5), success=False)
    assert best_success([paid]) is None
    failed = group("t", [0.5, 0.5])
    assert not lacks_success(failed), "without a verdict a reward above 0 is a success"
    assert lacks_success(replace(failed, trajectories=(paid, paid)))
    assert not lacks_success(replace(failed, trajectories=())), "nothing was played"


@pytest.mark.parametrize(("step", "version"), [(0, 0), (3, 0), (8, 0), (9, 1), (20, 12)])
def test_a_success_from_before_the_run_counts_as_old_as_one_may_be(step, version):
    success = trajectory("t", reward=1.0, version=77)
    old = as_old_as_may_be(success, step, max_age=8)
    assert old.versions.tolist() == [version if sampled else -1 for sampled in success.loss_mask]
    assert old.min_version == version
    assert np.array_equal(old.behavior_logprobs, success.behavior_logprobs)


def test_a_completed_group_has_the_success_as_its_last_episode_with_all_that_was_sampled():
    success = trajectory("00000001-t", index=1, reward=1.0, version=3)
    hopeless = group("00000009-t", [0.0, 0.0, 0.0], version=6)
    whole = completed(hopeless, success)
    row = whole.trajectories[3]
    assert (row.task_id, row.episode_index, row.rollout) == ("00000009-t", 3, 3)
    assert (row.info, row.pooled_from) == (success.info, "00000001-t/1")
    assert (row.reward, row.min_version) == (1.0, 3)
    for name in ("token_ids", "loss_mask", "behavior_logprobs", "versions"):
        assert np.array_equal(getattr(row, name), getattr(success, name))
    assert as_played(whole) == replace(whole, trajectories=hopeless.trajectories)
    assert as_played(hopeless) is hopeless
