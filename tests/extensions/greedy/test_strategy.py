"""The greedy episode beside a group: the others' baseline, and never trained itself."""

import asyncio

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.errors import EnvironmentFailure
from asyncrl.extensions.greedy.strategy import GreedyBaseline
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import GREEDY_REWARD, FailureClass, Status
from tests.rollout.test_worker import setup


def test_a_greedy_episode_gives_the_others_their_baseline_and_is_not_trained(renderer):
    async def scenario():
        ledger, engine, _, _ = setup(renderer, tasks=2)
        settings = EpisodeSettings(Limits(0, 16, 200))
        greedy = ChatPlayer(engine, LocalEnvs(), renderer, parse_hermes, settings)
        player = ChatPlayer(engine, LocalEnvs(), renderer, parse_hermes, settings)
        runner = EpisodeGroupRunner(player, [GreedyBaseline(greedy)])
        return [await runner.run_group(ledger.lease("w"), "w", 30.0) for _ in range(2)]

    for group, reward in zip(asyncio.run(scenario()), (0.0, 1.0), strict=True):
        assert [t.episode_index for t in group.trajectories] == [0, 1]
        assert [t.info[GREEDY_REWARD] for t in group.trajectories] == [reward, reward]


def test_a_greedy_episode_that_fails_fails_its_group(renderer):
    class Broken(LocalEnvs):
        def open(self, *args):
            raise EnvironmentFailure("no grid")

    async def scenario():
        ledger, engine, _, _ = setup(renderer, tasks=1)
        settings = EpisodeSettings(Limits(0, 16, 200))
        greedy = ChatPlayer(engine, Broken(), renderer, parse_hermes, settings)
        player = ChatPlayer(engine, LocalEnvs(), renderer, parse_hermes, settings)
        runner = EpisodeGroupRunner(player, [GreedyBaseline(greedy)])
        return await runner.run_group(ledger.lease("w"), "w", 30.0)

    group = asyncio.run(scenario())
    assert [t.status for t in group.trajectories] == [Status.FAILED] * 2
    assert {t.failure for t in group.trajectories} == {FailureClass.ENVIRONMENT}
    assert all(t.error == "the greedy episode failed: no grid" for t in group.trajectories)
