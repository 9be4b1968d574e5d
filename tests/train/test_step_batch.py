"""Groups become tensors in a fixed order, and nothing older than the bound gets in."""

import dataclasses

import numpy as np
import pytest
import torch

from asyncrl.errors import StaleError
from asyncrl.train.step.step import split_minibatches
from asyncrl.train.step.step_batch import FurtherGroups, build_step_batch, pad_rows, to_advantage_batch
from asyncrl.types import FailureClass, Status
from tests.train.factories import batch_of_groups, group, trajectory


def test_rows_are_ordered_by_task_and_episode_whatever_the_arrival():
    groups = batch_of_groups()
    forward, backward = (build_step_batch(order, 0, 0) for order in (groups, groups[::-1]))
    names = [(t.task_id, t.episode_index) for t in forward.trajectories]
    assert names == [(f"t{g}", i) for g in range(3) for i in range(4)]
    assert names == [(t.task_id, t.episode_index) for t in backward.trajectories]
    assert forward.group.tolist() == backward.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_failed_episodes_leave_the_batch():
    whole = group("t", [1.0, 0.0, 1.0])
    failed = trajectory("t", 3, failure=FailureClass.INFRASTRUCTURE)
    mixed = dataclasses.replace(whole, trajectories=(*whole.trajectories, failed))
    batch = build_step_batch([mixed], 0, 0)
    assert [t.episode_index for t in batch.trajectories] == [0, 1, 2]


@pytest.mark.parametrize(("version", "bound"), [(3, 0), (2, 1), (0, 3)])
def test_tokens_at_the_limit_are_admitted(version, bound):
    assert len(build_step_batch([group("t", [0.0, 1.0], version)], 3, bound).trajectories) == 2


@pytest.mark.parametrize(("version", "bound"), [(2, 0), (0, 2), (4, 1)])
def test_older_and_newer_tokens_are_refused_by_name(version, bound):
    with pytest.raises(StaleError, match=f"task t9 episode 0 has tokens of versions {version} to {version}"):
        build_step_batch([group("t9", [0.0, 1.0], version)], 3, bound)


def test_replayed_groups_come_last_have_an_age_of_their_own_and_no_lag():
    fresh, old, oldest = group("b", [0.0, 1.0], 3), group("a", [1.0, 0.0], 1), group("c", [1.0, 0.0], 0)
    batch = build_step_batch([fresh], 3, 0, [FurtherGroups("replayed", [oldest, old], 3)])
    assert [t.task_id for t in batch.trajectories] == ["b", "b", "a", "a", "c", "c"]
    assert [g.task.id for g in batch.fresh] == ["b"]
    assert ([g.task.id for g in batch.groups], batch.further) == (["b", "a", "c"], {"replayed": 2})
    assert [t.task_id for t in batch.fresh_trajectories] == ["b", "b"]
    assert batch.lags == {0: 12}, "of fresh groups alone"
    with pytest.raises(StaleError, match="task c episode 0 has tokens of versions 0 to 0"):
        build_step_batch([fresh], 3, 0, [FurtherGroups("replayed", [old, oldest], 2)])
    with pytest.raises(StaleError, match="task a"):
        build_step_batch([old], 3, 0, [FurtherGroups("replayed", [fresh], 3)])


def test_one_stale_token_is_enough_to_refuse():
    fresh = trajectory("t", 0, version=5)
    versions = fresh.versions.copy()
    versions[np.flatnonzero(fresh.loss_mask)[-1]] = 3
    stale = dataclasses.replace(fresh, versions=versions)
    mixed = dataclasses.replace(group("t", [0.0, 1.0], 5), trajectories=(fresh, stale))
    with pytest.raises(StaleError, match="versions 3 to 5"):
        build_step_batch([mixed], 5, 1)


def test_padding_is_masked_and_carries_no_version():
    batch = build_step_batch([group("t", [0.0, 1.0, 0.0])], 0, 0)
    rows = pad_rows(batch, [0, 2])
    assert rows.token_ids.shape == (2, 18)
    for row, number in enumerate((0, 2)):
        t = batch.trajectories[number]
        assert rows.token_ids[row, : t.num_tokens].tolist() == t.token_ids.tolist()
        assert rows.mask[row, : t.num_tokens].tolist() == t.loss_mask.tolist()
        assert rows.behavior_logp[row, : t.num_tokens].tolist() == t.behavior_logprobs.tolist()
        assert not rows.mask[row, t.num_tokens :].any()
        assert (rows.versions[row, t.num_tokens :] == -1).all()


def test_no_rows_are_one_fully_masked_row():
    rows = pad_rows(build_step_batch([group("t", [0.0, 1.0])], 0, 0), [])
    assert rows.token_ids.shape == (1, 2)
    assert not rows.mask.any()


def test_estimators_see_turns_components_and_truncation():
    whole = group("t", [1.0, 0.0])
    first, second = whole.trajectories
    first = dataclasses.replace(first, components={"goal": 1.0}, status=Status.TRUNCATED)
    second = dataclasses.replace(second, components={})
    batch = build_step_batch([dataclasses.replace(whole, trajectories=(first, second))], 0, 0)
    seen = to_advantage_batch(batch)
    assert seen.rewards.tolist() == [1.0, 0.0]
    assert seen.truncated.tolist() == [True, False]
    assert seen.components["goal"][0] == 1.0
    assert torch.isnan(seen.components["goal"][1])
    assert seen.turn_rewards == [[0.0, 1.0], [0.0, 0.0]]
    assert seen.observation_ids == [["s0", "s1"]] * 2
    assert seen.turn_ids[0].tolist() == [0] * 3 + [1] * 3
    assert ((seen.turn_ids >= 0) == seen.mask).all()


def test_a_turn_that_was_cut_off_agrees_with_no_expert_and_one_without_a_verdict_leaves_none():
    def matches(*last, status):
        whole = trajectory("t", 0)
        turns = (*whole.turns[:-1], dataclasses.replace(whole.turns[-1], matches=last[0]))
        cut = dataclasses.replace(whole, turns=turns, status=status)
        batch = build_step_batch([dataclasses.replace(group("t", [0.0]), trajectories=(cut,))], 0, 0)
        return to_advantage_batch(batch).turn_matches

    assert matches(None, status=Status.TRUNCATED) == [[True, False]]
    assert matches(None, status=Status.FINISHED) is None
    assert matches(False, status=Status.FINISHED) == [[True, False]]


def test_minibatches_keep_groups_whole_and_lose_no_row():
    batch = build_step_batch(batch_of_groups(), 0, 0)
    parts = split_minibatches(batch, range(12), 2)
    assert sorted(row for part in parts for row in part) == list(range(12))
    owners = [{int(batch.group[row]) for row in part} for part in parts]
    assert owners == [{0, 2}, {1}]
    assert len(split_minibatches(batch, range(4), 3)) == 1


def test_lags_count_sampled_tokens_by_versions_behind():
    groups = [group("a", [0.0, 1.0], version=4), group("b", [0.0, 1.0], version=5)]
    assert build_step_batch(groups, 5, 1).lags == {1: 12, 0: 12}


def test_estimators_are_told_how_many_turns_of_a_hint_each_row_was_given():
    whole = group("t", [1.0, 0.0, 1.0])
    hinted = dataclasses.replace(whole.trajectories[2], info={"hint_turns": 2})
    batch = build_step_batch(
        [dataclasses.replace(whole, trajectories=(*whole.trajectories[:2], hinted))], 0, 0
    )
    assert to_advantage_batch(batch).hint_turns == [0, 0, 2]
    assert to_advantage_batch(batch, rows=[2, 1]).hint_turns == [2, 0]
