"""Groups against a past version: it plays one side, and only the other side's trajectories are left."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.opponents import OpponentRunner, learners_part
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import OPPONENT, FailureClass, Group, Lease, Opponent, Status, Task
from tests.buffer.factories import trajectory

NEWEST = 9


class Engines:
    """Says the same move every time, under the version that was asked for."""

    def __init__(self, renderer, move):
        self.ids = renderer.assistant({"role": "assistant", "content": move})
        self.asked = []

    async def generate(self, request):
        self.asked.append((request.agent, request.version))
        version = NEWEST if request.version is None else request.version
        size = len(self.ids)
        return Generated(self.ids, np.full(size, -0.5, np.float32), np.full(size, version, np.int32), "stop")


def play(renderer, opponent, move="a 1"):
    engines = Engines(renderer, move)
    settings = EpisodeSettings(Limits(0, 100, 2000))

    def make_runner(generator):
        return EpisodeGroupRunner(ChatPlayer(generator, LocalEnvs(), renderer, parse_hermes, settings))

    lease = Lease("g", Task("train-0", "nim", 0), NEWEST, NEWEST, 2, 1, 60.0, opponent=opponent)
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
        assert set(t.versions[t.loss_mask].tolist()) == {NEWEST}
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
