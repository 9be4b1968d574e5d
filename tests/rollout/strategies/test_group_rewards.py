"""Rewards that see a whole group: what they are shown, and what becomes of their verdicts."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from asyncrl.errors import JudgeError
from asyncrl.rollout.strategies.group_rewards import GroupRewards, rewarded
from asyncrl.rollout.verdict import Verdict
from asyncrl.types import FailureClass, Lease, Status, Task
from tests.train.factories import trajectory

TASK = Task("t", "gridworld")


@dataclass
class Given:
    """Says what it is given, and keeps what it was shown."""

    verdicts: list
    mode: str = "replace"
    timing: str = ""
    shown: list = field(default_factory=list)

    async def score(self, task, played):
        self.shown.append([one.episode_index for one in played])
        if isinstance(self.verdicts, Exception):
            raise self.verdicts
        return self.verdicts


def earned(value):
    return Verdict(value, {"given": value})


def scored(reward, episodes):
    return asyncio.run(rewarded(reward, TASK, episodes))


def test_episodes_that_failed_are_not_shown_and_stay_as_they_are():
    failed = (trajectory(index=1, failure=FailureClass.ENVIRONMENT),)
    reward = Given([earned(1.0), earned(0.25)])
    found = scored(reward, [(trajectory(index=0),), failed, (trajectory(index=2, reward=9.0),)])
    assert reward.shown == [[0, 2]]
    assert [one[0].reward for one in found] == [1.0, failed[0].reward, 0.25]
    assert found[1] == failed


def test_an_episode_without_a_verdict_fails_alone_and_keeps_its_main_trajectory_only():
    pair = (trajectory(index=1, reward=1.0), replace(trajectory(index=1), reward=0.5))
    found = scored(Given([earned(1.0), JudgeError("away")], timing="judge_s"), [(trajectory(index=0),), pair])
    assert [len(one) for one in found] == [1, 1]
    (lost,) = found[1]
    assert (lost.status, lost.failure, lost.error) == (Status.FAILED, FailureClass.JUDGE, "away")
    assert all(one[0].timing["judge_s"] >= 0.0 for one in found)


def test_a_reward_that_fails_fails_all_that_it_was_shown():
    found = scored(Given(JudgeError("away")), [(trajectory(index=n, reward=1.0),) for n in range(2)])
    assert {one[0].failure for one in found} == {FailureClass.JUDGE}
    assert not any(one[0].usable for one in found)


def test_a_bug_is_a_crash():
    with pytest.raises(ZeroDivisionError):
        scored(Given(ZeroDivisionError()), [(trajectory(),)])


def test_several_rewards_follow_each_other_and_what_one_failed_the_next_is_not_shown():
    first = Given([earned(1.0), JudgeError("away")])
    second = Given([earned(0.5)], mode="add")

    async def play(requests):
        return [(trajectory(index=n),) for n in range(2)]

    lease = Lease("l", TASK, 0, 1, 2, 1, 60.0)
    found = asyncio.run(GroupRewards([first, second]).play(lease, "w", [], play))
    assert (first.shown, second.shown) == ([[0, 1]], [[0]])
    assert found[0][0].reward == 1.5
    assert found[1][0].failure is FailureClass.JUDGE
