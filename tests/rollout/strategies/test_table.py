"""What every strategy keeps: the group is whole, and the tokens that are trained are those that were sampled."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.curriculum.examples import examples_extra
from asyncrl.extensions.league.opponent import Opponent, opponent_extra
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.group_reward import group_rewards
from asyncrl.rollout.strategies.parts import FurtherPolicy, WorkerParts
from asyncrl.rollout.strategies.table import STRATEGIES, configured
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Lease, Status, Task
from tests.extensions.branches.test_strategy import ENV
from tests.extensions.curriculum.test_strategy import WAY
from tests.extensions.league.test_strategy import SLOT, Buffer

VERSION, LOGP, SIZE = 3, -0.5, 3
MINIMAL = {"model": {"path": "m"}, "env": {"name": "gridworld"}}
SETTINGS = {
    "policies": {},
    "opponents": {"opponents": {"choose": "uniform"}, "lora": {"rank": 4}},
    "length": {"length": {"mode": "exact", "most_target": 200}},
    "group_rewards": {"majority": {"mode": "replace"}},
    "verifier": {"env": {"name": "verified", "config": {"tasks": "calculator"}}},
    "answers": {"algo": {"advantage": {"name": "igpo"}}},
    "examples": {"curriculum": {"name": "xrpo"}},
    "greedy": {"algo": {"advantage": {"name": "remax"}}},
    "hints": {"rollout": {"hinted": 1}},
    "branches": {"rollout": {"branches": 2}},
}
"""With what a recipe has each strategy."""


class Voice:
    """Says one word under one version, or raises."""

    def __init__(self, renderer, error=None):
        self.ids = renderer.assistant({"role": "assistant", "content": "north"})
        self.error, self.requests = error, []

    async def generate(self, request):
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        size = len(self.ids)
        version = VERSION if request.version is None else request.version
        return Generated(self.ids, np.full(size, LOGP, np.float32), np.full(size, version, np.int32), "stop")


class Slow(Voice):
    """Never answers."""

    async def generate(self, request):
        self.requests.append(request)
        await asyncio.Event().wait()


class NoEnv(LocalEnvs):
    def open(self, *args):
        raise EnvironmentFailure("no trail")


def runner_of(name, renderer, voice, envs=None):
    """A runner with this strategy alone."""
    settings = EpisodeSettings(Limits(0, 16, 900))

    def make_player(temperature):
        return ChatPlayer(voice, envs or LocalEnvs(), renderer, parse_hermes, settings)

    policies = [FurtherPolicy("help", frozenset({"helper"}), voice, Buffer(SLOT))]
    config = parse_config({**MINIMAL, **SETTINGS[name]})
    parts = WorkerParts(
        config,
        voice,
        renderer.assistant,
        make_player,
        policies if name == "policies" else (),
        rewards=group_rewards(WorkerContext(config)),
    )
    strategy = STRATEGIES[name].load()(parts)
    assert type(strategy) in map(type, configured(parts))
    return EpisodeGroupRunner(make_player(1.0), [strategy])


def lease_of(number=0):
    data = {"answer": "south", "hint": ["west", "east"]}
    return Lease(
        f"{number}-l", Task(f"t{number}", ENV, 0, data=data), VERSION, VERSION + 1, SIZE, 1, 60.0,
        extras={**examples_extra((WAY,)), **opponent_extra(Opponent(2, main=False))},
    )  # fmt: skip


def run(runner, lease):
    return asyncio.run(runner.run_group(lease, "w", 20.0))


every_strategy = pytest.mark.parametrize("name", list(STRATEGIES))


@every_strategy
def test_the_group_is_the_leases_and_whole_and_the_buffer_can_read_it(name, renderer):
    lease = lease_of()
    group = run(runner_of(name, renderer, Voice(renderer)), lease)
    assert (group.id, group.task, group.version, group.worker) == (lease.id, lease.task, VERSION, "w")
    assert {t.rollout for t in group.trajectories} == set(range(SIZE))
    assert [t.episode_index for t in group.trajectories] == list(range(len(group.trajectories)))
    assert all(t.status is Status.FINISHED for t in group.trajectories)
    read = decode_group(encode_group(group))
    assert [t.info for t in read.trajectories] == [t.info for t in group.trajectories]


@every_strategy
def test_what_is_trained_is_what_was_sampled(name, renderer):
    voice = Voice(renderer)
    group = run(runner_of(name, renderer, voice), lease_of())
    for t in group.trajectories:
        assert t.num_sampled > 0
        assert set(t.behavior_logprobs[t.loss_mask]) == {np.float32(LOGP)}
        assert set(t.versions[t.loss_mask]) == {VERSION}
        for turn in t.turns:
            trained = t.loss_mask[turn.start : turn.end]
            assert trained.all() or not trained.any()
            if trained.all():
                assert t.token_ids[turn.start : turn.end].tolist() == voice.ids.tolist()


@every_strategy
def test_an_environment_that_fails_fails_the_whole_group_and_is_told(name, renderer, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    group = run(runner_of(name, renderer, Voice(renderer), NoEnv()), lease_of())
    assert {t.rollout for t in group.trajectories} == set(range(SIZE))
    assert {t.failure for t in group.trajectories} == {FailureClass.ENVIRONMENT}
    assert all("no trail" in t.error for t in group.trajectories)


@every_strategy
def test_a_bug_is_a_crash(name, renderer):
    with pytest.raises(BaseExceptionGroup) as caught:
        run(runner_of(name, renderer, Voice(renderer, AttributeError("a bug"))), lease_of())
    assert caught.value.subgroup(AttributeError)


@every_strategy
def test_a_lost_lease_ends_all_that_is_played_for_it(name, renderer):
    async def scenario():
        voice = Slow(renderer)
        playing = asyncio.ensure_future(runner_of(name, renderer, voice).run_group(lease_of(), "w", 20.0))
        while not voice.requests:
            await asyncio.sleep(0)
        playing.cancel()
        await asyncio.wait({playing})
        left = asyncio.all_tasks() - {asyncio.current_task()}
        return playing.cancelled(), left

    assert asyncio.run(scenario()) == (True, set())


@every_strategy
def test_groups_at_once_do_not_mix(name, renderer):
    async def scenario(runner):
        return await asyncio.gather(*(runner.run_group(lease_of(n), "w", 20.0) for n in range(3)))

    voice = Voice(renderer)
    groups = asyncio.run(scenario(runner_of(name, renderer, voice)))
    assert [{t.task_id for t in group.trajectories} for group in groups] == [{"t0"}, {"t1"}, {"t2"}]
    asked = [request.id for request in voice.requests]
    assert len(set(asked)) == len(asked)


def test_a_plain_run_has_no_strategy(renderer):
    parts = WorkerParts(parse_config(MINIMAL), Voice(renderer), renderer.assistant, lambda temperature: None)
    assert configured(parts) == ()


def test_where_an_agent_plays_no_episode_is_given_its_first_turns():
    sections = {"rollout": {"hinted": 1, "branches": 1}}
    parts = WorkerParts(parse_config({**MINIMAL, **sections}), None, None, None, (), elsewhere=True)
    assert configured(parts) == ()


OTHER = FurtherPolicy("other", frozenset({"second"}), None)


@pytest.mark.parametrize(
    ("agent", "policies", "message"),
    [(True, (), "cannot be trained with an agent"), (False, (OTHER,), "policies: must be left out")],
)
def test_a_greedy_baseline_is_refused_where_it_cannot_be_played(agent, policies, message):
    parts = WorkerParts(
        parse_config({**MINIMAL, **SETTINGS["greedy"]}), None, None, lambda temperature: None, policies, agent
    )
    with pytest.raises(ConfigError, match=message):
        configured(parts)
