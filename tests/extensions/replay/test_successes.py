"""The successes that a trainer keeps, and the groups that it completes by them."""

from dataclasses import replace

import pytest
import torch

from asyncrl.algo.advantage.grpo import grpo
from asyncrl.config import parse_config
from asyncrl.data.table import TrajectoryTable
from asyncrl.errors import StaleError
from asyncrl.extensions.replay.success_pool import problem
from asyncrl.extensions.replay.successes import Completion, SuccessPool, recorded
from asyncrl.train.loop.callbacks import StepGroups
from asyncrl.train.step.step_batch import build_step_batch, to_advantage_batch
from asyncrl.types import Task
from tests.train.factories import group


def played(name, seed, rewards, version):
    """A group of the problem `seed` under a name of its own."""
    made = group(name, rewards, version)
    return replace(made, task=Task(name, "gridworld", seed))


def test_a_group_without_a_success_is_completed_by_its_own_problems_and_no_others():
    pool = SuccessPool(max_age=4)
    pool.remember([played("1-a", 1, [0.0, 1.0], 2), played("2-b", 2, [0.0, 0.0], 2)], step=2)
    again = [
        played("3-a", 1, [0.0, 0.0], 3),
        played("4-b", 2, [0.0, 0.0], 3),
        played("5-a", 1, [1.0, 0.0], 3),
    ]
    whole, *others = pool.complete(again, 3)
    assert [t.reward for t in whole.trajectories] == [0.0, 0.0, 1.0]
    assert whole.trajectories[2].pooled_from == "1-a/1"
    assert others == again[1:], "one of a problem without a success, and one that has its own"


def test_a_success_is_used_up_to_its_age_and_then_forgotten():
    pool = SuccessPool(max_age=2)
    pool.remember([played("1-a", 1, [0.0, 1.0], 3)], step=3)
    hopeless = played("2-a", 1, [0.0, 0.0], 5)
    assert len(pool.complete([hopeless], 5)[0].trajectories) == 3
    assert pool.complete([hopeless], 6) == [hopeless]
    pool.remember([], step=4)
    assert len(pool.groups) == 1
    pool.remember([], step=5)
    assert not pool.groups


def test_a_newer_success_takes_the_place_of_an_older_one_unless_its_group_was_poisoned():
    pool = SuccessPool(max_age=9)
    pool.remember([played("1-a", 1, [0.0, 1.0], 0)], step=0)
    pool.remember([played("2-a", 1, [1.0, 0.0], 1)], step=1, without=["g-2-a"])
    pool.remember([played("3-a", 1, [0.0, 0.0], 2)], step=2)
    (kept,) = pool.groups.values()
    assert (kept.id, kept.trajectories[0].min_version) == ("g-1-a", 0)
    pool.remember([played("4-a", 1, [1.0, 0.0], 3)], step=3)
    (kept,) = pool.groups.values()
    assert (kept.id, kept.trajectories[0].min_version, len(kept.trajectories)) == ("g-4-a", 3, 1)


def test_what_completed_a_group_does_not_become_a_success_of_that_group():
    pool = SuccessPool(max_age=3)
    pool.remember([played("1-a", 1, [0.0, 1.0], 0)], step=0)
    whole = pool.complete([played("2-a", 1, [0.0, 0.0], 2)], 2)
    pool.remember(whole, step=2)
    (kept,) = pool.groups.values()
    assert kept.id == "g-1-a"


def pool_with(*names_and_seeds, max_age=4):
    """A pool with successes from before the run, which say to be of version 50 of another one."""
    found = [played(name, seed, [1.0], 50) for name, seed in names_and_seeds]
    return SuccessPool(max_age, recorded={problem(group.task): group for group in found})


def test_a_success_from_before_the_run_completes_a_group_until_the_run_has_one_of_its_own_and_when_that_is_too_old():
    pool = pool_with(("r-a", 1), max_age=2)
    hopeless = {step: played(f"{step}-a", 1, [0.0, 0.0], step) for step in range(3, 8)}

    def added(step):
        row = pool.complete([hopeless[step]], step)[0].trajectories[2]
        return row.pooled_from, row.min_version

    assert added(3) == ("r-a/0", 1), "as sampled two versions before the step"
    pool.remember([played("4-a", 1, [0.0, 1.0], 4)], step=4)
    assert added(5) == ("4-a/1", 4)
    assert added(6) == ("4-a/1", 4)
    pool.remember([hopeless[6]], step=6)
    assert added(7) == ("r-a/0", 5)
    other = played("7-b", 2, [0.0, 0.0], 7)
    assert pool.complete([other], 7) == [other], "there is none at its problem"


def test_a_group_with_a_success_from_before_the_run_is_trained_as_one_with_an_old_one():
    pool = pool_with(("r-a", 1))
    fresh = [played("2-a", 1, [0.0, 0.0, 0.0], 9), played("3-b", 2, [0.0, 1.0], 9)]
    batch = build_step_batch(pool.complete(fresh, 9), 9, 0, added_max_age=4)
    assert (batch.fresh_rows, batch.num_added, batch.trajectories[3].min_version) == ([0, 1, 2, 4, 5], 1, 5)
    assert batch.trajectories[3].behavior_logprobs[5:8].tolist() == [-5.5] * 3, "as they were recorded"
    advantages = grpo(to_advantage_batch(batch), eps=0.0)
    assert torch.allclose(advantages[:4, 0], torch.tensor([-0.5, -0.5, -0.5, 1.5]))


def test_metrics_count_the_groups_that_successes_from_before_the_run_have_completed():
    pool = pool_with(("r-a", 1), ("r-b", 2))
    pool.remember([played("1-b", 2, [0.0, 1.0], 3)], step=3)
    callback = Completion(pool)
    fresh = [played(f"4-{seed}", seed, [0.0, 0.0], 4) for seed in (1, 2, 3)]
    groups = StepGroups([*fresh, played("4-1b", 1, [0.0, 1.0], 4)])
    callback.groups(4, groups)
    assert [len(group.trajectories) for group in groups.own] == [3, 3, 2, 2]
    assert callback.metrics(4) == {"replay/recorded_successes": 1}, "the second by the run's own"
    assert Completion(SuccessPool(4)).metrics(4) == {}


def recipe(**train):
    return parse_config(
        {
            "model": {"path": "sft"},
            "env": {"name": "gridworld"},
            "algo": {"preset": "grpo"},
            "curriculum": {"name": "vade"},
            "train": {"complete_groups": True} | train,
        }
    )


def test_recorded_successes_are_read_once_and_are_there_without_the_file(tmp_path):
    old, folder = tmp_path / "old", tmp_path / "run"
    folder.mkdir()
    TrajectoryTable(old / "trajectories").write(1, [played("1-a", 1, [0.0, 1.0], 1)])
    (old / "config.json").write_text(recipe().model_dump_json())
    config = recipe(complete_from=str(old))
    found = recorded(config, "no-model", folder)
    (old / "trajectories" / "step-000001.parquet").unlink()
    again = recorded(config, "no-model", folder)
    assert found.keys() == again.keys() == {problem(Task("", "gridworld", 1))}
    first, second = (next(iter(some.values())).trajectories[0] for some in (found, again))
    for name in ("token_ids", "loss_mask", "behavior_logprobs", "versions"):
        assert getattr(first, name).tolist() == getattr(second, name).tolist()
    TrajectoryTable(tmp_path / "other" / "trajectories").write(1, [played("1-b", 2, [1.0], 1)])
    (tmp_path / "other" / "config.json").write_text(recipe().model_dump_json())
    others = recorded(recipe(complete_from=str(tmp_path / "other")), "no-model", folder)
    assert others.keys() == {problem(Task("", "gridworld", 2))}, "another name is another pool"


def test_a_checkpoint_brings_the_same_successes_back():
    pool = SuccessPool(max_age=3)
    pool.remember([played("1-a", 1, [0.0, 1.0], 0), played("2-b", 2, [1.0, 0.0], 0)], step=0)
    other = SuccessPool(max_age=3)
    other.load_state_dict(pool.state_dict())
    hopeless = [played("3-a", 1, [0.0, 0.0], 1), played("4-b", 2, [0.0, 0.0], 1)]
    rows = [one.complete(hopeless, 1) for one in (pool, other)]
    for mine, its in zip(*rows, strict=True):
        assert mine.trajectories[2].token_ids.tolist() == its.trajectories[2].token_ids.tolist()
        assert mine.trajectories[2].info == its.trajectories[2].info


def test_a_completed_group_has_a_signal_and_its_success_is_no_part_of_what_the_step_sampled():
    pool = SuccessPool(max_age=4)
    pool.remember([played("1-a", 1, [0.0, 1.0], 1)], step=1)
    fresh = [played("2-a", 1, [0.0, 0.0, 0.0], 4), played("3-b", 2, [0.0, 1.0], 4)]
    batch = build_step_batch(pool.complete(fresh, 4), 4, 0, added_max_age=4)
    assert batch.group.tolist() == [0, 0, 0, 0, 1, 1]
    assert (batch.fresh_rows, batch.num_added) == ([0, 1, 2, 4, 5], 1)
    assert batch.lags == {0: 30}, "five episodes of six tokens; the success is three versions old"
    advantages = grpo(to_advantage_batch(batch), eps=0.0)
    # Rewards 0, 0, 0, 1: mean 1/4, deviations -1/4 and 3/4, standard deviation of the sample 1/2.
    assert torch.allclose(advantages[:4, 0], torch.tensor([-0.5, -0.5, -0.5, 1.5]))
    with pytest.raises(StaleError, match="task 2-a episode 3 has tokens of versions 1 to 1"):
        build_step_batch(pool.complete(fresh, 4), 4, 0, added_max_age=2)
