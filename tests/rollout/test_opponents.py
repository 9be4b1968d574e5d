"""Groups against a past version: it plays one side, and only the other side's trajectories are left."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.multi_policy import FurtherPolicy
from asyncrl.rollout.opponents import OpponentRunner, learners_part
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import NEWEST, OPPONENT, FailureClass, Group, Lease, Opponent, Status, Task
from tests.buffer.factories import trajectory

NEWEST_VERSION = 9


class Engines:
    """Says the same move every time, under the version that was asked for."""

    def __init__(self, renderer, move):
        self.ids = renderer.assistant({"role": "assistant", "content": move})
        self.asked = []

    async def generate(self, request):
        self.asked.append((request.agent, request.version))
        version = NEWEST_VERSION if request.version is None else request.version
        size = len(self.ids)
        return Generated(self.ids, np.full(size, -0.5, np.float32), np.full(size, version, np.int32), "stop")


def play(renderer, opponent, move="a 1"):
    engines = Engines(renderer, move)
    settings = EpisodeSettings(Limits(0, 100, 2000))

    def make_runner(generator):
        return EpisodeGroupRunner(ChatPlayer(generator, LocalEnvs(), renderer, parse_hermes, settings))

    lease = Lease(
        "g", Task("train-0", "nim", 0), NEWEST_VERSION, NEWEST_VERSION, 2, 1, 60.0, opponent=opponent
    )
    return asyncio.run(OpponentRunner(make_runner, engines).run_group(lease, "w", 30.0)), engines.asked


def test_without_an_opponent_both_sides_are_the_policys_and_are_kept(renderer):
    group, asked = play(renderer, None)
    assert [(t.rollout, t.info.get("agent", "")) for t in group.trajectories] == [
        (0, ""), (1, ""), (0, "second"), (1, "second"),
    ]  # fmt: skip
    assert {version for _, version in asked} == {None}
    assert sum(t.reward for t in group.trajectories) == 0.0


@pytest.mark.parametrize(("main", "kept"), [(True, "second"), (False, "")])
def test_a_past_version_plays_one_side_and_none_of_its_tokens_are_left(renderer, main, kept):
    group, asked = play(renderer, Opponent(4, main))
    assert set(asked) == {("", 4 if main else None), ("second", None if main else 4)}
    assert [(t.episode_index, t.rollout, t.info.get("agent", "")) for t in group.trajectories] == [
        (0, 0, kept), (1, 1, kept),
    ]  # fmt: skip
    for t in group.trajectories:
        assert set(t.versions[t.loss_mask].tolist()) == {NEWEST_VERSION}
        assert t.info[OPPONENT] == 4
        assert t.reward in (1.0, -1.0)


def test_an_episode_in_which_the_learner_has_not_spoken_has_no_tokens_to_train(renderer):
    group, _ = play(renderer, Opponent(4, main=True), move="nonsense")
    assert [(t.rollout, t.num_sampled, t.usable) for t in group.trajectories] == [
        (0, 0, False),
        (1, 0, False),
    ]


def test_an_episode_that_failed_stays_a_failure_whoever_played_the_main_agent():
    task = Task("t", "nim")
    failed = trajectory("t", 0, failure=FailureClass.INFRASTRUCTURE)
    part = learners_part(Group("g", task, 0, (failed,)), Opponent(1, main=True))
    assert [(t.status, t.failure) for t in part.trajectories] == [
        (Status.FAILED, FailureClass.INFRASTRUCTURE)
    ]


class Buffer:
    """A buffer that hands out one slot and keeps what is put under it."""

    def __init__(self, slot):
        self.slot, self.put_groups, self.released = slot, [], []

    async def lease(self, worker, wait_s):
        return self.slot

    async def renew(self, lease_id):
        return 60.0

    async def release(self, lease_id):
        self.released.append(lease_id)

    async def put(self, group):
        self.put_groups.append(group)

    async def status(self):
        return {"plan_closed": self.slot is None}


SLOT = Lease("slot", Task("slot-0", "nim"), 3, 3, 2, 1, 60.0, order=8)


def play_exploiter(renderer, opponent, slot=SLOT, move="a 1"):
    """Play a group; return it, what was asked of the policy's engines and of the exploiter's, and its buffer."""
    engines, rival = Engines(renderer, move), Engines(renderer, move)
    settings, buffer = EpisodeSettings(Limits(0, 100, 2000)), Buffer(slot)
    requests = []

    class Asked:
        async def generate(self, request):
            requests.append(request)
            return await rival.generate(request)

    def make_runner(generator):
        return EpisodeGroupRunner(ChatPlayer(generator, LocalEnvs(), renderer, parse_hermes, settings))

    runner = OpponentRunner(make_runner, engines, FurtherPolicy("rival", frozenset(), Asked(), buffer))
    lease = Lease(
        "g", Task("train-0", "nim", 0), NEWEST_VERSION, NEWEST_VERSION, 2, 1, 60.0, opponent=opponent
    )
    return asyncio.run(runner.run_group(lease, "w", 30.0)), engines.asked, requests, buffer


@pytest.mark.parametrize(("main", "own", "policys"), [(True, "", "second"), (False, "second", "")])
def test_an_exploiters_side_goes_to_its_buffer_and_the_other_sides_to_the_policy(
    renderer, main, own, policys
):
    group, asked, requests, buffer = play_exploiter(renderer, Opponent(NEWEST, main, "rival"))
    assert set(asked) == {(policys, None)}
    assert {(r.agent, r.version, r.min_version, r.order) for r in requests} == {(own, None, 3, 8)}
    (part,) = buffer.put_groups
    assert (part.id, part.version, part.task) == ("slot", 3, SLOT.task)
    assert [(t.rollout, t.info.get("agent", "")) for t in part.trajectories] == [(0, own), (1, own)]
    assert [(t.rollout, t.info.get("agent", "")) for t in group.trajectories] == [(0, policys), (1, policys)]
    assert {t.info[OPPONENT] for t in group.trajectories} == {"rival"}
    assert all(OPPONENT not in t.info for t in part.trajectories)
    # Who wins is what the other one loses.
    for mine, other in zip(part.trajectories, group.trajectories, strict=True):
        assert mine.reward == -other.reward != 0


def test_of_a_past_version_that_meets_an_exploiter_only_the_rewards_are_left(renderer):
    opponent = Opponent(NEWEST, main=True, policy="rival", against=4)
    group, asked, _, buffer = play_exploiter(renderer, opponent)
    assert set(asked) == {("second", 4)}
    (part,) = buffer.put_groups
    assert {t.info[OPPONENT] for t in part.trajectories} == {4}
    assert [(t.num_sampled, t.usable) for t in group.trajectories] == [(0, False), (0, False)]
    assert [t.reward for t in group.trajectories] == [-t.reward for t in part.trajectories]


def test_a_copy_of_an_exploiter_is_asked_of_engines_that_have_a_later_version(renderer):
    group, asked, requests, buffer = play_exploiter(renderer, Opponent(6, main=True, policy="rival"))
    assert set(asked) == {("second", None)}
    assert {(r.version, r.min_version) for r in requests} == {(6, 7)}
    assert buffer.put_groups == []
    assert {t.info[OPPONENT] for t in group.trajectories} == {"rival/6"}


def test_an_exploiter_whose_training_has_ended_still_plays(renderer):
    group, _, requests, buffer = play_exploiter(renderer, Opponent(NEWEST, True, "rival"), slot=None)
    assert {(r.version, r.min_version) for r in requests} == {(None, 0)}
    assert buffer.put_groups == []
    assert len(group.trajectories) == 2
