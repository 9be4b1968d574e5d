"""Sessions in worker processes: real processes, killed, stopped and hung. One event loop and pool for the file."""

import asyncio
import dataclasses
import os
import signal
import sys
import time
import uuid

import psutil
import pytest

from asyncrl.env.hosting.runtime import LocalRuntime
from asyncrl.env.protocol import Action, Step
from asyncrl.errors import (
    ConfigError,
    DeadlineError,
    EnvironmentFailure,
    InfrastructureError,
    InputError,
    UnavailableError,
)
from asyncrl.services.env.workers.pool import NoWorkerReady, WorkerPool
from asyncrl.types import Task
from tests.env.hosted_envs import EVERYTHING

HANG_S = 2.0
STEP_S = 60.0


def task(env="InPlace"):
    return Task("t", f"tests.env.hosted_envs:{env}", 0)


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(loop):
    pool = WorkerPool(2, hang_s=HANG_S)
    loop.run(pool.start())
    loop.run(full_strength(pool))
    yield pool
    children = [psutil.Process(w.pid) for w in [*pool.workers.values(), *pool.retired]]
    loop.run(pool.stop())
    assert not [child for child in children if child.is_running()]


@pytest.fixture
def pool(shared, loop):
    """The pool at full strength, which the test before may have cost a worker; and who was lost."""
    loop.run(full_strength(shared))
    shared.replaced.clear()
    shared.lost = []
    shared.on_lost = lambda sessions, why: shared.lost.extend((session, why) for session in sessions)
    return shared


async def full_strength(pool):
    await until(lambda: len(pool.ready()) == pool.processes and not pool.retired)


async def until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for does not happen"
        await asyncio.sleep(0.02)


class Played:
    """One session; `say` plays a word."""

    def __init__(self, runtime, opened, session_id):
        self.runtime, self.id, self.pid = runtime, session_id, int(opened.messages[0]["content"])

    @classmethod
    async def open(cls, runtime, env="InPlace", **config):
        session_id = uuid.uuid4().hex
        return cls(runtime, await runtime.open(session_id, task(env), config), session_id)

    async def say(self, word, timeout_s=STEP_S):
        return await self.runtime.step(self.id, Action(word), timeout_s)

    async def text(self, word):
        return (await self.say(word)).messages[0]["content"]


def test_sessions_are_spread_and_stay_in_their_process(pool, loop):
    async def scenario():
        sessions = [await Played.open(pool) for _ in range(4)]
        pids = [s.pid for s in sessions]
        assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]
        assert os.getpid() not in pids
        for number in (1, 2):
            assert [await s.text("hello") for s in sessions] == [f"hello {number} {pid}" for pid in pids]
        for s in sessions:
            await pool.close(s.id)
        assert [len(w.sessions) for w in pool.ready()] == [0, 0]

    loop.run(scenario())


@pytest.mark.parametrize("env", ["InPlace", "OnThread"])
@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("raise", EnvironmentFailure, "step raised KeyError: 'lost key'"),
        ("nonsense", EnvironmentFailure, "must return a Step, got dict"),
        ("endless", EnvironmentFailure, "reward must be a number up to"),
        ("object", EnvironmentFailure, "cannot be sent"),
        ("broken", EnvironmentFailure, "^the level file is broken$"),
        ("own", InfrastructureError, "^lost between 1 and 2$"),
        ("infrastructure", InfrastructureError, "^the simulator's machine is gone$"),
        ("scarce", InfrastructureError, "Too many open files"),
    ],
)
def test_errors_keep_their_class_across_the_process_boundary(pool, loop, env, word, error, message):
    async def scenario():
        session = await Played.open(pool, env)
        try:
            with pytest.raises(error, match=message) as caught:
                await session.say(word)
            assert type(caught.value) is error
        finally:
            await pool.close(session.id)

    loop.run(scenario())


def test_what_does_not_open_says_why_and_leaves_nothing(pool, loop):
    async def scenario():
        with pytest.raises(InputError, match="refuse must be false"):
            await Played.open(pool, refuse=True)
        with pytest.raises(EnvironmentFailure, match="reset raised RuntimeError: no level left"):
            await Played.open(pool, fail_reset=True)
        with pytest.raises(ConfigError, match="cannot be imported"):
            await pool.open("s", Task("t", "no_such_module:Env", 0), {})
        assert [len(w.sessions) for w in pool.ready()] == [0, 0]

    loop.run(scenario())


def test_a_step_is_the_same_here_and_there(pool, loop):
    async def scenario():
        local = LocalRuntime()
        sessions = [await Played.open(runtime) for runtime in (local, pool)]
        steps = [await session.say("everything") for session in sessions]
        await pool.close(sessions[1].id)
        for step in steps:
            assert dataclasses.asdict(step) == {f.name: EVERYTHING[f.name] for f in dataclasses.fields(Step)}

    loop.run(scenario())


def test_workers_do_not_have_the_services_token(loop, monkeypatch):
    monkeypatch.setenv("ASYNCRL_TOKEN", "secret")
    monkeypatch.setenv("ENV_SETTING", "kept")

    async def scenario():
        pool = WorkerPool(1)
        try:
            await pool.start()
            session = await Played.open(pool)
            return [await session.text(f"variable {name}") for name in ("ASYNCRL_TOKEN", "ENV_SETTING")]
        finally:
            await pool.stop()

    assert loop.run(scenario()) == ["unset", "kept"]


@pytest.mark.parametrize(
    ("word", "how"), [("kill", "was killed by SIGKILL"), ("exit", "ended with exit code 3")]
)
def test_a_worker_that_dies_loses_its_own_sessions_only_and_is_replaced(pool, loop, caplog, word, how):
    async def scenario():
        culprit, other, neighbour = [await Played.open(pool) for _ in range(3)]
        assert (culprit.pid == neighbour.pid, culprit.pid == other.pid) == (True, False)
        with pytest.raises(InfrastructureError, match=how):
            await culprit.say(word)
        assert sorted(pool.lost) == sorted((s.id, pool.lost[0][1]) for s in (culprit, neighbour))
        with pytest.raises(InfrastructureError, match="lost with its worker"):
            await neighbour.say("hello")
        assert await other.text("hello") == f"hello 1 {other.pid}"
        await full_strength(pool)
        assert pool.replaced == {"crash": 1}
        fresh = await Played.open(pool)
        assert fresh.pid not in (culprit.pid, other.pid)
        for session in (culprit, other, neighbour, fresh):
            await pool.close(session.id)

    loop.run(scenario())
    assert f"{how}; 2 session(s) lost; replacing it in" in caplog.text


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_replaced_while_the_others_go_on(pool, loop):
    async def scenario():
        culprit, other = [await Played.open(pool) for _ in range(2)]
        hung = asyncio.ensure_future(culprit.say("spin"))
        assert await other.text("hello") == f"hello 1 {other.pid}"
        with pytest.raises(
            InfrastructureError,
            match=r"has not answered for 12 s, in which it computed for \d+ s and moved no data and was killed",
        ):
            await hung
        assert not psutil.pid_exists(culprit.pid)
        await full_strength(pool)
        assert (pool.replaced, [s for s, _ in pool.lost]) == ({"hang": 1}, [culprit.id])
        await pool.close(other.id)

    loop.run(scenario())


@pytest.mark.slow
def test_a_stopped_worker_is_noticed_without_anybody_calling_it(pool, loop):
    async def scenario():
        session = await Played.open(pool)
        os.kill(session.pid, signal.SIGSTOP)
        await until(lambda: pool.lost)
        assert not psutil.pid_exists(session.pid)
        assert (pool.replaced, [s for s, _ in pool.lost]) == ({"hang": 1}, [session.id])

    loop.run(scenario())


@pytest.mark.slow
def test_a_call_that_never_returns_retires_its_worker_which_serves_its_other_sessions_to_the_end(pool, loop):
    async def scenario():
        culprit, elsewhere, neighbour = [await Played.open(pool, "OnThread") for _ in range(3)]
        assert culprit.pid == neighbour.pid
        with pytest.raises(DeadlineError, match=r"step took longer than 0.2 s"):
            await culprit.say("sleep 600", timeout_s=0.2)
        closing = asyncio.ensure_future(pool.close(culprit.id))
        await until(lambda: pool.retired)
        await until(lambda: len(pool.ready()) == 2)
        assert (pool.replaced, pool.lost) == ({"overrun": 1}, [])
        assert await neighbour.text("hello") == f"hello 1 {neighbour.pid}"
        opened = [await Played.open(pool) for _ in range(2)]
        assert culprit.pid not in {s.pid for s in opened}
        for session in (neighbour, elsewhere, *opened):
            await pool.close(session.id)
        await asyncio.gather(closing, return_exceptions=True)
        await until(lambda: not psutil.pid_exists(culprit.pid))

    loop.run(scenario())


def test_a_worker_that_cannot_start_is_tried_again_with_pauses_and_the_wait_ends(loop, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def scenario():
        pool = WorkerPool(1, start_timeout_s=1.0)
        with pytest.raises(
            UnavailableError, match=r"no environment worker started within run\.start_timeout_s=1 s"
        ):
            await pool.start()
        return pool.replaced["start"]

    assert loop.run(scenario()) in (2, 3, 4), "0.1 + 0.2 + 0.4 s of pauses, and what starting takes"
    assert "replacing it in 0.1 s" in caplog.text
    assert "replacing it in 0.2 s" in caplog.text


def test_an_open_while_no_worker_is_ready_may_be_tried_again(loop):
    async def scenario():
        with pytest.raises(NoWorkerReady) as caught:
            await Played.open(WorkerPool(1))
        return caught.value.retry_after_s

    assert loop.run(scenario()) == 1.0


@pytest.mark.slow
def test_stopping_ends_workers_that_do_not_want_to(loop):
    async def scenario():
        pool = WorkerPool(2)
        await pool.start()
        await full_strength(pool)
        sessions = [await Played.open(pool) for _ in range(2)]
        hung = [asyncio.ensure_future(s.say("spin")) for s in sessions]
        await asyncio.sleep(0.1)
        await pool.stop()
        with pytest.raises(InfrastructureError, match="the environment service has stopped"):
            await hung[0]
        await asyncio.gather(*hung, return_exceptions=True)
        return [psutil.pid_exists(s.pid) for s in sessions]

    assert loop.run(scenario()) == [False, False]
