"""Groups of several policies: each plays its agents under a slot of its own buffer and gets its own trajectories."""

import asyncio

import numpy as np
import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.data.codec import decode_group, decode_trajectory, encode_trajectory
from asyncrl.env.protocol import Step
from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import FurtherPolicy
from asyncrl.rollout.strategies.policies import FurtherPolicies, MultiPolicyGenerator, silent
from asyncrl.rollout.worker import RolloutLoop
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Lease, Task
from tests.buffer.serving import ThreadService
from tests.chat.test_conversation import Asking
from tests.data.test_codec import THREE_TURNS, make_trajectory
from tests.data.test_token_extras import VALUES

HERE = __name__
MAIN_VERSION = 9


class Sometimes(Asking):
    """Asks the helpers in its first episode only; the others end with the first turn."""

    played = 0

    def reset(self):
        type(self).played += 1
        self.asks = type(self).played == 1
        return super().reset()

    def step(self, action):
        return super().step(action) if self.asks else Step(done=True, success=False)


class Breaking(Asking):
    def step(self, action):
        raise InfrastructureError("the machine is gone")


class Lasting(Asking):
    async def step(self, action):
        await asyncio.sleep(0.5)
        return super().step(action)


class Voice:
    """Samples under one version and remembers who asked for what."""

    def __init__(self, renderer, version):
        self.ids = renderer.assistant({"role": "assistant", "content": "north"})
        self.version, self.requests = version, []

    async def generate(self, request):
        self.requests.append(request)
        size = len(self.ids)
        return Generated(
            self.ids, np.full(size, -0.5, np.float32), np.full(size, self.version, np.int32), "stop"
        )


@pytest.fixture
def helpers(tmp_path):
    service = ThreadService(tmp_path, lease_s=0.9)
    service.ledger.add_tasks([Task(f"slot-{number}", f"{HERE}:Asking") for number in range(20)])
    yield service
    service.close()


def main_lease(env, order=7):
    return Lease(
        f"{order}-g",
        Task(f"task-{order}", f"{HERE}:{env}"),
        MAIN_VERSION,
        MAIN_VERSION + 1,
        2,
        1,
        60.0,
        order,
    )


def make_player(renderer, generator):
    settings = EpisodeSettings(Limits(0, 16, 200), check_history=True)
    return ChatPlayer(generator, LocalEnvs(), renderer, parse_hermes, settings)


def make_runner(renderer, main, helper, buffer, renew_every_s=0.2):
    """A runner of the main policy and of one that plays the helpers."""
    policies = [FurtherPolicy("help", frozenset({"helper"}), helper, buffer)]
    return EpisodeGroupRunner(make_player(renderer, main), [FurtherPolicies(main, policies, renew_every_s)])


def play(renderer, service, env="Asking", times=1, version=0, renew_every_s=0.2):
    """Play groups one after the other; return them, both voices, and the counts of the helpers' ledger."""
    main, helper = Voice(renderer, MAIN_VERSION), Voice(renderer, version)

    async def scenario():
        buffer = BufferClient(service.url)
        runner = make_runner(renderer, main, helper, buffer, renew_every_s)
        try:
            groups = [await runner.run_group(main_lease(env, n), "w", 30.0) for n in range(times)]
            return groups, await buffer.status()
        finally:
            await buffer.close()

    groups, status = asyncio.run(scenario())
    return groups, main, helper, status


def bodies(service):
    """The groups the helpers' trainer would get."""

    async def take():
        buffer = BufferClient(service.url)
        try:
            return [decode_group(body) for body in await buffer.take(0, 5.0)]
        finally:
            await buffer.close()

    return asyncio.run(take())


def test_a_worker_that_a_policys_buffer_refuses_stops_leasing_and_gives_its_lease_back(
    renderer, helpers, tmp_path
):
    helpers.ledger.quarantine("w", "made up")
    (tmp_path / "main").mkdir()
    mains = ThreadService(tmp_path / "main")
    mains.ledger.add_tasks([Task("task-1", f"{HERE}:Asking")])

    async def scenario():
        buffer, own = BufferClient(helpers.url), BufferClient(mains.url)
        runner = make_runner(renderer, Voice(renderer, 0), Voice(renderer, 1), buffer)
        loop = RolloutLoop("w", own, runner, 2, 10.0, 30.0, poll_s=0.05)
        running = asyncio.ensure_future(loop.run())
        try:
            async with asyncio.timeout(20):
                while not loop.refused or (await own.status())["in_flight"]:
                    assert not running.done()
                    await asyncio.sleep(0.01)
            # The other slot had asked before: what it is granted goes back, too.
            await asyncio.sleep(1.0)
            status = await own.status()
            loop.drain()
            await asyncio.wait_for(running, 20)
            return loop.refused, status
        finally:
            running.cancel()
            await buffer.close()
            await own.close()

    try:
        refused, status = asyncio.run(scenario())
    finally:
        mains.close()
    assert "worker 'w' is quarantined: made up" in refused
    assert (status["pending"], status["in_flight"], status["failed"]) == (1, 0, 0)


def test_each_policy_samples_its_own_agents_turns(renderer, helpers):
    _, main, helper, _ = play(renderer, helpers)
    assert [request.agent for request in main.requests] == [""] * 4
    assert sorted(request.agent for request in helper.requests) == sorted(
        ["helper/1", "helper/1", "helper/2"] * 2
    )
    assert {(r.min_version, r.order) for r in main.requests} == {(MAIN_VERSION, 0)}
    assert {(r.min_version, r.order) for r in helper.requests} == {(0, 1)}


def test_each_policys_group_holds_its_own_trajectories_and_no_others(renderer, helpers):
    (first, second), *_ = play(renderer, helpers, times=2)
    assert [(t.episode_index, t.rollout, t.info.get("agent")) for t in first.trajectories] == [
        (0, 0, None),
        (1, 1, None),
    ]
    assert {int(v) for t in first.trajectories for v in t.versions[t.loss_mask]} == {MAIN_VERSION}
    put, later = bodies(helpers)
    assert [(t.episode_index, t.rollout) for t in put.trajectories] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert {t.info["agent"] for t in put.trajectories} == {"helper"}
    assert {int(v) for t in put.trajectories for v in t.versions[t.loss_mask]} == {0}
    assert [t.reward for t in put.trajectories] == [2.125, 2.125, 4.25, 4.25]
    assert (put.task.id, put.trajectories[0].info["of_task"]) == ("slot-0", first.task.id)
    assert (later.task.id, later.trajectories[0].info["of_task"]) == ("slot-1", second.task.id)


def test_a_group_in_which_a_policy_hardly_speaks_frees_its_slot(renderer, helpers):
    Sometimes.played = 0
    (group,), _, _, status = play(renderer, helpers, "Sometimes")
    assert [t.rollout for t in group.trajectories] == [0, 1]
    assert status["dropped_by_reason"] == {"too_few_usable": 1}
    assert (status["in_flight"], status["ready"]) == (0, 0)


def test_a_group_that_infrastructure_failed_leaves_the_slot_for_another(renderer, helpers, monkeypatch):
    monkeypatch.setattr("asyncrl.rollout.player.RETRY_PAUSE_S", 0.0)
    (group,), _, helper, status = play(renderer, helpers, "Breaking")
    assert {t.error for t in group.trajectories} == {"the machine is gone"}
    assert (helper.requests, status["pending"], status["dropped"]) == ([], 20, 0)


@pytest.mark.slow
def test_a_slot_is_kept_as_long_as_the_group_is_played(renderer, helpers):
    _, _, _, status = play(renderer, helpers, "Lasting")
    assert (status["ready"], status["expired"]) == (1, 0)


def test_a_group_refused_by_one_policys_buffer_is_not_lost_to_the_others(renderer, helpers):
    (group,), _, _, status = play(renderer, helpers, version=5)
    assert len(group.trajectories) == 2
    assert (status["in_flight"], status["ready"], status["pending"]) == (0, 0, 20)


@pytest.mark.slow
def test_a_policy_whose_training_has_ended_plays_on_untrained(renderer, helpers):
    assert helpers.ledger.close_plan(abandon=True) == 20
    (group,), _, helper, status = play(renderer, helpers)
    assert len(helper.requests) == 6
    assert len(group.trajectories) == 2
    assert (status["ready"], status["dropped_by_reason"]) == (0, {"abandoned": 20})


def test_a_policy_that_falls_behind_holds_the_others_back(renderer, helpers):
    play(renderer, helpers, times=4)

    async def scenario():
        task = asyncio.ensure_future(asyncio.to_thread(play, renderer, helpers, version=1))
        done, _ = await asyncio.wait({task}, timeout=1.0)
        held_back = not done
        buffer = BufferClient(helpers.url)
        await buffer.take(0, 5.0)
        await buffer.commit(1)
        await buffer.close()
        (group,), *_ = await task
        return held_back, group

    held_back, group = asyncio.run(scenario())
    assert held_back
    assert len(group.trajectories) == 2


def test_without_slots_every_policy_plays_its_agents(renderer):
    main, helper = Voice(renderer, MAIN_VERSION), Voice(renderer, 1)
    generator = MultiPolicyGenerator(main, [FurtherPolicy("help", frozenset({"helper"}), helper)])
    asyncio.run(make_player(renderer, generator).play(EpisodeRequest(Task("t", f"{HERE}:Asking"), 0, "e")))
    assert (len(main.requests), len(helper.requests)) == (2, 3)


def test_an_episode_without_a_policys_turn_has_nothing_that_is_known_of_the_others_tokens():
    mains = make_trajectory(turns=THREE_TURNS, extras=VALUES)
    found = decode_trajectory(encode_trajectory(silent(mains)))
    assert (found.num_tokens, found.extras, found.reward) == (0, {}, 0.0)
