"""Sessions in one process: repeats, limits, deadlines, and whose fault an error is."""

import asyncio
import gc
import time
import weakref

import pytest

from asyncrl.env.host import EnvHost, SessionGone
from asyncrl.env.protocol import Action, Env, Step
from asyncrl.errors import (
    ConfigError,
    ConflictError,
    DeadlineError,
    EnvironmentFailure,
    InfrastructureError,
    InputError,
    UnavailableError,
)
from asyncrl.types import Task
from tests.env import hosted_envs

HERE = __name__


class Counting(Env):
    """Counts its steps; the word decides what goes wrong."""

    blocking = False
    closed = 0

    def reset(self):
        self.steps = 0
        return [{"role": "user", "content": "go"}]

    def step(self, action):
        self.steps += 1
        if action.content == "raise":
            raise KeyError("lost key")
        if action.content == "nonsense":
            return {"reward": 1}
        return Step([{"role": "user", "content": str(self.steps)}])

    def close(self):
        type(self).closed += 1


class Slow(Env):
    """Sleeps in a plain method, as a blocking environment would."""

    def reset(self):
        return []

    def step(self, action):
        time.sleep(0.5)
        return Step()


class Asynchronous(Env):
    async def reset(self):
        await asyncio.sleep(0)
        return [{"role": "user", "content": "async"}]

    async def step(self, action):
        await asyncio.sleep(0)
        return Step(done=True)


def task(env="Counting"):
    return Task("t", f"{HERE}:{env}", 0)


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_repeated_step_returns_the_first_answer_and_a_wrong_index_is_refused():
    async def scenario():
        host = EnvHost()
        session = await host.open(task(), {})
        first = await host.step(session.id, 0, Action("a"), 5)
        again = await host.step(session.id, 0, Action("a"), 5)
        assert first is again
        assert session.env.steps == 1
        with pytest.raises(ConflictError, match="step_index must be 1, got 5"):
            await host.step(session.id, 5, Action("a"), 5)
        assert (await host.step(session.id, 1, Action("a"), 5)).messages[0]["content"] == "2"

    run(scenario())


def test_a_repeated_open_with_one_key_gives_one_session():
    async def scenario():
        host = EnvHost()
        assert (await host.open(task(), {}, "k")).id == (await host.open(task(), {}, "k")).id
        assert len(host.sessions) == 1

    run(scenario())


def test_a_full_host_says_so_and_has_room_again_after_a_close():
    async def scenario():
        host = EnvHost(max_sessions=1)
        session = await host.open(task(), {})
        with pytest.raises(UnavailableError, match="all 1 environment sessions"):
            await host.open(task(), {})
        await host.close(session.id)
        await host.close(session.id)
        await host.open(task(), {})

    run(scenario())


@pytest.mark.parametrize("word", ["raise", "nonsense"])
def test_an_environment_that_breaks_its_contract_ends_its_session_as_its_own_failure(word):
    async def scenario():
        host = EnvHost()
        session = await host.open(task(), {})
        with pytest.raises(EnvironmentFailure, match="step raised"):
            await host.step(session.id, 0, Action(word), 5)
        with pytest.raises(SessionGone):
            await host.step(session.id, 1, Action("a"), 5)

    run(scenario())


def test_a_slow_step_ends_at_its_deadline_and_takes_the_session_with_it():
    async def scenario():
        host = EnvHost()
        session = await host.open(task("Slow"), {})
        with pytest.raises(DeadlineError, match=r"longer than 0.05 s"):
            await host.step(session.id, 0, Action("a"), 0.05)
        assert not host.sessions

    run(scenario())


def test_a_session_whose_client_is_gone_is_reaped_and_closed():
    async def scenario():
        before = Counting.closed
        host = EnvHost(lease_s=0.01)
        await host.open(task(), {})
        reaper = asyncio.ensure_future(host.reap(every_s=0.02))
        async with asyncio.timeout(30):
            while host.sessions or Counting.closed == before:
                await asyncio.sleep(0.01)
        reaper.cancel()
        assert (len(host.sessions), host.counts.reaped, Counting.closed - before) == (0, 1, 1)

    run(scenario())


def test_a_renewed_session_outlives_its_lease_and_one_that_ended_is_named():
    async def scenario():
        host = EnvHost(lease_s=1.5)
        kept, ended, left = [await host.open(task(), {}) for _ in range(3)]
        await host.close(ended.id)
        reaper = asyncio.ensure_future(host.reap(every_s=0.01))
        async with asyncio.timeout(30):
            while left.id in host.sessions:
                assert host.renew_all([kept.id, ended.id, "never"]) == [ended.id, "never"]
                await asyncio.sleep(0.03)
        reaper.cancel()
        assert list(host.sessions) == [kept.id]
        with pytest.raises(SessionGone, match=r"not renewed within its lease of 1\.5 s"):
            host.show(left.id)

    run(scenario())


def test_a_service_that_stood_still_does_not_take_its_clients_for_dead():
    async def scenario():
        host = EnvHost(lease_s=0.3)
        session = await host.open(task(), {})
        reaper = asyncio.ensure_future(host.reap(every_s=0.01))
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_soon(time.sleep, 0.5)
        await asyncio.sleep(0.05)
        reaper.cancel()
        return host.renew(session.id)

    assert run(scenario()) == 0.3


def test_asynchronous_environments_run_natively():
    async def scenario():
        host = EnvHost()
        session = await host.open(task("Asynchronous"), {})
        assert session.messages == [{"role": "user", "content": "async"}]
        assert (await host.step(session.id, 0, Action("a"), 5)).done

    run(scenario())


def test_a_configuration_the_environment_refuses_is_the_callers_error():
    async def scenario():
        with pytest.raises(InputError, match="refuses"):
            await EnvHost().open(Task("t", "gridworld", 0), {"size": 1})

    run(scenario())


def troubled(env="InPlace"):
    return Task("t", f"tests.env.hosted_envs:{env}", 0)


def test_opens_with_one_key_at_the_same_time_give_one_session():
    async def scenario():
        host = EnvHost(max_sessions=1)
        sessions = await asyncio.gather(*(host.open(troubled("OnThread"), {}, "k") for _ in range(8)))
        assert len({s.id for s in sessions}) == 1
        assert (len(host.sessions), host.counts.opened, host.counts.rejected) == (1, 1, 0)
        await host.close(sessions[0].id)
        assert (await host.open(troubled(), {}, "k")).id != sessions[0].id
        await host.close_all()

    run(scenario())


def test_a_key_of_another_tasks_session_is_refused():
    async def scenario():
        host = EnvHost()
        await host.open(troubled(), {}, "k")
        with pytest.raises(ConflictError, match="key 'k' belongs to a session of task 't'"):
            await host.open(Task("other", "gridworld", 0), {}, "k")
        assert len(host.sessions) == 1

    run(scenario())


def test_who_asked_first_may_go_away_and_the_other_still_gets_the_session():
    async def scenario():
        host = EnvHost()
        first, second = (asyncio.ensure_future(host.open(troubled("OnThread"), {}, "k")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).id in host.sessions
        await host.close_all()

    run(scenario())


def test_an_open_that_failed_is_forgotten_and_gives_its_place_back():
    async def scenario():
        host = EnvHost(max_sessions=1)
        for _ in range(3):
            with pytest.raises(EnvironmentFailure, match="no level left"):
                await host.open(troubled("OnThread"), {"fail_reset": True}, "k")
        assert not host.held
        assert (await host.open(troubled("OnThread"), {}, "k")).id in host.sessions
        await host.close_all()

    run(scenario())


def test_one_environment_can_be_full_while_others_have_room():
    async def scenario():
        host = EnvHost(max_sessions=3, limits={"gridworld": 1})
        grid = await host.open(Task("t", "gridworld", 0), {})
        with pytest.raises(UnavailableError, match="all 1 sessions of environment 'gridworld'") as caught:
            await host.open(Task("t", "gridworld", 0), {})
        assert caught.value.retry_after_s == 1.0
        for _ in range(2):
            await host.open(troubled(), {})
        with pytest.raises(UnavailableError, match="all 3 environment sessions"):
            await host.open(troubled(), {})
        assert host.counts.rejected == 2
        await host.close(grid.id)
        await host.open(Task("t", "gridworld", 0), {})
        await host.close_all()
        assert not host.held

    run(scenario())


@pytest.mark.parametrize("env", ["OnThread", "Asynchronous"])
def test_as_many_blocking_sessions_step_at_once_as_there_are(env):
    async def scenario():
        host = EnvHost()
        await host.start()
        crowd = [await host.open(troubled(env), {}) for _ in range(hosted_envs.CROWD)]
        steps = await asyncio.gather(*(host.step(s.id, 0, Action("meet"), 60) for s in crowd))
        await host.close_all()
        return [s.messages[0]["content"] for s in steps]

    assert run(scenario()) == ["met"] * hosted_envs.CROWD


def test_an_error_is_repeated_with_its_step_and_any_other_call_hears_that_the_session_ended():
    async def scenario():
        host = EnvHost()
        session = await host.open(troubled(), {})
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match="lost key"):
                await host.step(session.id, 0, Action("raise"), 5)
        with pytest.raises(SessionGone, match=r"has ended: environment .*lost key"):
            await host.step(session.id, 1, Action("hello"), 5)
        assert (host.counts.failed, host.counts.failures) == (1, {"environment": 1})

    run(scenario())


def test_an_ended_session_leaves_its_environment_to_the_garbage_collector():
    async def scenario():
        host = EnvHost()
        session = await host.open(troubled(), {})
        env = weakref.ref(session.env)
        for _ in range(2):
            with pytest.raises(InfrastructureError, match="lost between 1 and 2"):
                await host.step(session.id, 0, Action("own"), 5)
        del session
        await host.close_all()
        gc.collect()
        return env()

    assert run(scenario()) is None


@pytest.mark.parametrize(
    ("word", "error", "failure"),
    [
        ("raise", EnvironmentFailure, "environment"),
        ("infrastructure", InfrastructureError, "infrastructure"),
        ("scarce", InfrastructureError, "infrastructure"),
    ],
)
@pytest.mark.parametrize("env", ["InPlace", "OnThread"])
def test_failures_are_sorted_and_counted_by_class(env, word, error, failure):
    async def scenario():
        host = EnvHost()
        session = await host.open(troubled(env), {})
        with pytest.raises(error):
            await host.step(session.id, 0, Action(word), 5)
        assert host.counts.failures == {failure: 1}
        await host.close_all()

    run(scenario())


def test_the_agents_mistake_is_an_observation_and_not_a_failure():
    async def scenario():
        host = EnvHost()
        session = await host.open(troubled(), {})
        step = await host.step(session.id, 0, Action("agent"), 5)
        assert (step.messages[0]["content"], step.done, step.success) == ("no such tool", True, False)
        assert (step.reward, step.components) == (0.0, {"agent_error": 1.0})
        assert not host.counts.failures

    run(scenario())


def test_text_that_no_tokenizer_takes_is_replaced():
    async def scenario():
        host = EnvHost()
        session = await host.open(troubled(), {})
        return (await host.step(session.id, 0, Action("file"), 5)).messages[0]["content"]

    assert run(scenario()) == "caf?"


def test_a_session_is_closed_once_and_only_after_its_step():
    async def scenario():
        host, before = EnvHost(), hosted_envs.OnThread.closed
        session = await host.open(troubled("OnThread"), {})
        step = asyncio.ensure_future(host.step(session.id, 0, Action("sleep 0.2"), 5))
        await asyncio.sleep(0.05)
        await host.close(session.id)
        assert hosted_envs.OnThread.closed == before, "closed in the middle of a step"
        assert host.held.total() == 1
        assert (await step).messages[0]["content"] == "woke up"
        await host.close(session.id)
        await host.close_all()
        assert hosted_envs.OnThread.closed == before + 1
        assert not host.held

    run(scenario())


def test_a_name_that_is_no_environment_is_the_callers_error():
    async def scenario():
        for name in ("..x:y", "tests.env.hosted_envs:say", "tests.env.hosted_envs:Nothing", "gridwrld", ":"):
            with pytest.raises(ConfigError, match=r"env\.name"):
                await EnvHost().open(Task("t", name, 0), {})

    run(scenario())


def test_who_has_no_recipe_gives_a_step_what_its_environment_needs_where_that_is_more_than_usual():
    async def limits():
        host = EnvHost()
        try:
            sessions = [await host.open(troubled(env), {}) for env in ("InPlace", "Needy")]
            return [session.step_limit_s(60.0) for session in sessions]
        finally:
            await host.close_all()

    assert asyncio.run(limits()) == [60.0, 10_000.0]
