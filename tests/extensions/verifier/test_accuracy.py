"""The balanced accuracy of a group's verdicts."""

import asyncio

import numpy as np
import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.verifier.accuracy import BALANCED_ACCURACY, NotedAccuracy, balanced_accuracy
from asyncrl.extensions.verifier.env import AGREES, TRUE_NEGATIVE, TRUE_POSITIVE
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.rollout.strategies.table import STRATEGIES
from asyncrl.types import Lease, Status, Task, Trajectory, Turn

WRONG, RIGHT = TRUE_NEGATIVE, TRUE_POSITIVE


def test_both_kinds_count_alike_however_many_there_are_of_each():
    assert balanced_accuracy([1, 1, 0], [1, 0]) == pytest.approx(7 / 12)
    assert balanced_accuracy([1, 1, 1, 1, 1], [0]) == 0.5, "everything is called right"


def test_without_one_of_either_kind_there_is_none():
    assert balanced_accuracy([1, 0], []) is None
    assert balanced_accuracy([], [1]) is None


def trajectory(index, reward, components, agent=""):
    info = {"agent": agent, "agent_name": agent} if agent else {}
    return Trajectory(
        task_id="t",
        episode_index=index,
        token_ids=np.arange(3, dtype=np.int32),
        loss_mask=np.array([False, True, True]),
        behavior_logprobs=np.zeros(3, np.float32),
        versions=np.zeros(3, np.int32),
        turns=(Turn(1, 3, reward=reward),),
        reward=reward,
        status=Status.FINISHED,
        components=components,
        info=info,
    )


def verified(*found):
    """Episodes of a main agent and its verifier: whether the first was right, and whether the second agrees."""
    return [
        (
            trajectory(i, float(right), {}),
            trajectory(
                i,
                float(agrees),
                {AGREES: float(agrees), RIGHT if right else WRONG: float(agrees)},
                "verifier",
            ),
        )
        for i, (right, agrees) in enumerate(found)
    ]


def grouped(episodes):
    async def play(requests):
        return episodes

    lease = Lease("l", Task("t", "verified", 0), 0, 1, len(episodes), 1, 60.0)
    return asyncio.run(NotedAccuracy().play(lease, "w", [], play))


def test_a_group_notes_it_on_its_verdicts_and_changes_no_reward():
    episodes = verified((True, True), (True, False), (False, True))
    found = grouped(episodes)
    assert {one[1].components[BALANCED_ACCURACY] for one in found} == {0.75}
    assert [one[1].reward for one in found] == [1.0, 0.0, 1.0]
    assert [one[0] for one in found] == [one[0] for one in episodes]


def test_a_group_of_one_kind_alone_and_episodes_without_a_verdict_stay_as_they_are():
    alone = (trajectory(0, 0.5, {}),)
    cut = (trajectory(1, 1.0, {}), trajectory(1, 0.0, {}, "verifier"))
    for episodes in (verified((True, True), (True, False)), [alone, cut]):
        assert grouped(episodes) == episodes


def test_a_run_whose_environment_is_verified_has_it():
    recipe = {"model": {"path": "m"}, "env": {"name": "verified", "config": {"tasks": "calculator"}}}
    parts = WorkerParts(parse_config(recipe), None, None, None)
    assert STRATEGIES["verifier"].wanted(parts)
    assert STRATEGIES["verifier"].load()(parts) == NotedAccuracy()
    parts = WorkerParts(parse_config(recipe | {"env": {"name": "calculator"}}), None, None, None)
    assert not STRATEGIES["verifier"].wanted(parts)
