"""Sessions in one process: repeats, limits, deadlines, and whose fault an error is."""

import asyncio
import time

import pytest

from asyncrl.env.host import EnvHost, SessionGone
from asyncrl.env.protocol import Action, Env, Step
from asyncrl.errors import ConflictError, DeadlineError, EnvironmentFailure, InputError, UnavailableError
from asyncrl.types import Task

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
        await asyncio.sleep(0.2)
        reaper.cancel()
        assert (len(host.sessions), host.counts.reaped, Counting.closed - before) == (0, 1, 1)

    run(scenario())


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
