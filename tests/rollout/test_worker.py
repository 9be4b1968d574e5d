"""The worker's loop against a real ledger in this process: leases, puts, losses, outages, draining."""

import asyncio
import time

import numpy as np
import pytest

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.env.protocol import Env, Step
from asyncrl.errors import InputError, UnavailableError
from asyncrl.generation import Generated
from asyncrl.rollout import worker
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.worker import MOST_ASKING, RolloutLoop, WorkerCounters
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import Group, Status, Task

DEADLINE_S = 20.0


class OneTurn(Env):
    """Ends after one turn; the reward is the parity of the task's seed."""

    blocking = False

    def reset(self):
        return [{"role": "user", "content": "goal"}]

    def step(self, action):
        return Step(reward=float(self.task.seed % 2), done=True, success=True)


class Buffer:
    """A ledger behind the worker's interface; `outages` calls fail first."""

    too_large = ()
    """Tasks whose groups are refused."""

    def __init__(self, ledger, outages=()):
        self.ledger, self.outages, self.refused = ledger, list(outages), []

    def _check(self, name):
        if name in self.outages:
            self.outages.remove(name)
            self.refused.append(name)
            raise UnavailableError("the buffer restarts")

    async def lease(self, worker, wait_s):
        self._check("lease")
        end = time.monotonic() + wait_s
        while (found := self.ledger.lease(worker)) is None and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return found

    async def renew(self, lease_id):
        return self.ledger.renew(lease_id)

    async def release(self, lease_id):
        return self.ledger.release(lease_id)

    async def reclaim(self, worker):
        return self.ledger.reclaim(worker)

    async def fail(self, lease_id, failure, error):
        return self.ledger.fail(lease_id, failure, error)

    async def put(self, group):
        self._check("put")
        if group.task.id in self.too_large:
            raise InputError("body must have at most 9 bytes")
        return self.ledger.put(group)


class Engine:
    """Samples the same turn under the ledger's version; waits while `gate` is closed."""

    def __init__(self, renderer, ledger):
        self.ids = renderer.assistant({"role": "assistant", "content": "north"})
        self.ledger, self.gate, self.started = ledger, asyncio.Event(), 0
        self.orders = []
        self.gate.set()

    async def generate(self, request):
        self.started += 1
        self.orders.append(request.order)
        version = self.ledger.version
        await self.gate.wait()
        count = len(self.ids)
        return Generated(
            self.ids, np.full(count, -0.5, np.float32), np.full(count, version, np.int32), "stop"
        )


def setup(renderer, tasks, outages=(), lease_s=60.0, slots=4, recycle=True):
    bounds = LedgerSettings(2, 1, 2, lease_s=lease_s, drop_no_signal=False, recycle=recycle)
    ledger = Ledger(":memory:", bounds)
    ledger.add_tasks([Task(f"t{i}", f"{__name__}:OneTurn", i) for i in range(tasks)])
    engine = Engine(renderer, ledger)
    settings = EpisodeSettings(Limits(0, 16, 200))
    runner = EpisodeGroupRunner(ChatPlayer(engine, LocalEnvs(), renderer, parse_hermes, settings))
    buffer = Buffer(ledger, outages)
    return ledger, engine, buffer, RolloutLoop("w", buffer, runner, slots, lease_s, 30.0, poll_s=0.05)


async def until(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def test_the_counters_add_up_over_a_group():
    task = Task("t", "none", 0)
    endings = [
        TrajectoryBuilder(task, i).finish(Status.TRUNCATED, info={"cached_tokens": 5, "history_forks": forks})
        for i, forks in enumerate((2, 0, 1))
    ]
    counters = WorkerCounters()
    counters.add(Group("g", task, 0, tuple(endings)))
    assert (counters.groups, counters.episodes["truncated"], counters.cached_tokens) == (1, 3, 15)
    assert counters.history_forks == 3


async def finish(loop, running):
    loop.drain()
    await asyncio.wait_for(running, DEADLINE_S)


def test_every_task_is_leased_put_and_trained_once_within_the_bound(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=8)
        running = asyncio.ensure_future(loop.run())
        trained = []
        for step in range(4):
            await until(lambda: ledger.stats()["ready"] >= 2)
            taken = ledger.take(step).groups
            for body in taken:
                trained.append(body)
            ledger.commit(step + 1)
        await finish(loop, running)
        return ledger.stats(), loop, len(trained), sorted(engine.orders)

    stats, loop, trained, orders = asyncio.run(scenario())
    assert orders == [order for order in range(1, 9) for _ in range(2)], "older leases have lower orders"
    assert (stats["trained"], trained, loop.counters.groups) == (8, 8, 8)
    assert loop.counters.episodes == {"finished": 16}
    assert loop.counters.turns == 16
    assert not loop.running


def test_no_more_groups_run_than_the_limit_of_the_moment_allows(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=4, slots=4)
        limit = [1]
        loop.limit = lambda: limit[0]
        engine.gate.clear()
        running = asyncio.ensure_future(loop.run())
        await until(lambda: len(loop.running) == 1)
        await asyncio.sleep(0.4)
        seen = [len(loop.running)]
        limit[0] = 3
        await until(lambda: len(loop.running) == 3)
        await asyncio.sleep(0.4)
        seen.append(len(loop.running))
        engine.gate.set()
        await finish(loop, running)
        return seen, ledger.stats()["in_flight"]

    assert asyncio.run(scenario()) == ([1, 3], 0)


def test_workers_that_find_no_slot_together_do_not_ask_again_together():
    class NoSlot:
        def __init__(self):
            self.waits = []

        async def reclaim(self, worker):
            return 0

        async def lease(self, worker, wait_s):
            self.waits.append(wait_s)
            if len(self.waits) == 20:
                loops[self].drain()

    buffers = [NoSlot(), NoSlot()]
    loops = {b: RolloutLoop(f"w{i}", b, None, 1, 60.0, 30.0, poll_s=4.0) for i, b in enumerate(buffers)}

    async def scenario():
        await asyncio.gather(*(loop.run() for loop in loops.values()))

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    waits = [wait for buffer in buffers for wait in buffer.waits]
    assert len(set(waits)) == 40
    assert 2.0 <= min(waits) < 3.0 < 5.0 < max(waits) <= 6.0


def test_a_few_of_many_free_slots_ask_at_once_and_all_of_them_get_leases(renderer):
    """Each long poll that comes back empty is a request for nothing."""

    async def scenario():
        slots = 5 * MOST_ASKING
        ledger, engine, buffer, loop = setup(renderer, tasks=0, slots=slots)
        asking, most, lease = 0, 0, buffer.lease

        async def counted(worker, wait_s):
            nonlocal asking, most
            asking += 1
            most = max(most, asking)
            try:
                return await lease(worker, wait_s)
            finally:
                asking -= 1

        buffer.lease = counted
        engine.gate.clear()
        running = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0.3)
        idle, asked_idle = len(loop.running), most
        ledger.add_tasks([Task(f"t{i}", f"{__name__}:OneTurn", i) for i in range(4)])
        await until(lambda: len(loop.running) == 4)
        engine.gate.set()
        await until(lambda: ledger.stats()["ready"] == 4)
        await finish(loop, running)
        return idle, asked_idle, most, loop.counters.groups

    idle, asked_idle, most, played = asyncio.run(scenario())
    assert (idle, asked_idle) == (0, MOST_ASKING)
    assert most == MOST_ASKING
    assert played == 4


def test_draining_puts_what_runs_and_leases_nothing_more(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=8, slots=2)
        engine.gate.clear()
        running = asyncio.ensure_future(loop.run())
        await until(lambda: engine.started == 4)
        loop.drain()
        engine.gate.set()
        await asyncio.wait_for(running, DEADLINE_S)
        return ledger.stats()

    stats = asyncio.run(scenario())
    assert (stats["ready"], stats["in_flight"], stats["pending"]) == (2, 0, 6)


def test_a_lease_that_is_granted_to_a_draining_worker_is_given_back(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=4, slots=2)
        granted, lease = asyncio.Event(), loop.buffer.lease

        async def late(*call):
            # The call was on its way when the worker was told.
            await granted.wait()
            return await lease(*call)

        loop.buffer.lease = late
        running = asyncio.ensure_future(loop.run())
        await asyncio.sleep(0)
        loop.drain()
        granted.set()
        await asyncio.wait_for(running, DEADLINE_S)
        return ledger.stats(), engine.started

    stats, started = asyncio.run(scenario())
    assert (stats["pending"], stats["in_flight"], stats["ready"], started) == (4, 0, 0, 0)


def test_a_cancelled_worker_gives_its_leases_back(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=4, slots=3)
        engine.gate.clear()
        running = asyncio.ensure_future(loop.run())
        await until(lambda: ledger.stats()["in_flight"] == 3 and engine.started)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return ledger, ledger.lease("other")

    ledger, lease = asyncio.run(scenario())
    assert ledger.stats()["pending"] == 3
    assert (lease.task.id, lease.attempt) == ("t0", 1)


def test_a_lost_lease_cancels_its_group_and_the_task_is_run_again(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=1, lease_s=0.3)
        engine.gate.clear()
        running = asyncio.ensure_future(loop.run())
        await until(lambda: engine.started == 2)
        lost = next(iter(loop.running))
        ledger.expire(time.monotonic() + 10)
        await until(lambda: loop.counters.leases_lost == 1 and loop.running and lost not in loop.running)
        second = next(iter(loop.running.values()))
        engine.gate.set()
        await until(lambda: ledger.stats()["ready"] == 1)
        await finish(loop, running)
        return second.attempt, loop.counters

    attempt, counters = asyncio.run(scenario())
    assert attempt == 2
    assert (counters.groups, counters.leases_lost) == (1, 1)


@pytest.mark.parametrize(("recycle", "admitted_at"), [(True, [0]), (False, [0, 1])])
def test_a_group_that_is_unfinished_at_a_commit_continues_or_starts_over(renderer, recycle, admitted_at):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=2, slots=1, recycle=recycle)
        loop.renew_every_s = 0.02
        versions = []
        running = asyncio.ensure_future(loop.run())
        await until(lambda: ledger.stats()["ready"] == 2)
        engine.gate.clear()
        ledger.add_tasks([Task("slow", f"{__name__}:OneTurn", 2)])
        await until(lambda: loop.running)
        versions.append(next(iter(loop.running.values())).version)
        assert len(ledger.take(0).groups) == 2
        ledger.commit(1)
        if not recycle:
            await until(lambda: any(lease.version == 1 for lease in loop.running.values()))
            versions.append(1)
        engine.gate.set()
        await until(lambda: ledger.stats()["ready"] == 1)
        await finish(loop, running)
        return versions, loop.counters.leases_lost, ledger.stats()["restarted"]

    assert asyncio.run(scenario()) == (admitted_at, len(admitted_at) - 1, len(admitted_at) - 1)


def test_a_lease_is_renewed_as_long_as_its_group_runs(renderer):
    async def scenario():
        ledger, engine, _, loop = setup(renderer, tasks=1, lease_s=0.3)
        engine.gate.clear()
        running = asyncio.ensure_future(loop.run())
        await until(lambda: engine.started == 2)
        for _ in range(8):
            await asyncio.sleep(0.1)
            ledger.expire()
        engine.gate.set()
        await until(lambda: ledger.stats()["ready"] == 1)
        await finish(loop, running)
        return loop.counters

    counters = asyncio.run(scenario())
    assert (counters.groups, counters.leases_lost) == (1, 0)


@pytest.mark.slow
def test_outages_of_the_buffer_are_ridden_out_and_a_put_counts_once(renderer):
    async def scenario():
        ledger, _, buffer, loop = setup(renderer, tasks=1, outages=["lease", "put"], slots=1)
        running = asyncio.ensure_future(loop.run())
        await until(lambda: ledger.stats()["ready"] == 1)
        await finish(loop, running)
        return buffer.refused, loop.counters

    refused, counters = asyncio.run(scenario())
    assert refused == ["lease", "put"]
    assert (counters.groups, counters.leases_lost) == (1, 0)


def test_a_quarantined_worker_asks_again_until_it_is_readmitted(renderer, monkeypatch):
    monkeypatch.setattr(worker, "ASK_AGAIN_S", 0.01)

    async def scenario():
        ledger, _, _, loop = setup(renderer, tasks=1, slots=2)
        ledger.quarantine("w", "its engine was at fault")
        running = asyncio.ensure_future(loop.run())
        await until(lambda: loop.refused)
        refused = loop.refused
        ledger.readmit("w")
        await until(lambda: ledger.stats()["ready"] == 1)
        await finish(loop, running)
        return refused, loop.refused

    before, after = asyncio.run(scenario())
    assert (before, after) == ("worker 'w' is quarantined: its engine was at fault", "")


def test_a_group_that_the_buffer_refuses_frees_its_slot_at_once_and_the_worker_continues(renderer):
    async def scenario():
        # Of two slots one would be held for a minute by the refused group.
        ledger, _, buffer, loop = setup(renderer, tasks=2, slots=1, lease_s=60.0)
        buffer.too_large = ("t0",)
        running = asyncio.ensure_future(loop.run())
        await until(lambda: ledger.stats()["failed"] == 1 and ledger.stats()["ready"] == 1)
        await finish(loop, running)
        return ledger.stats(), loop.counters

    stats, counters = asyncio.run(scenario())
    assert stats["in_flight"] == 0
    assert stats["failed_by_class"] == {"infrastructure": 1}
    assert counters.leases_lost == counters.groups - 1, "each attempt counts"


def test_a_bug_in_one_slot_ends_the_whole_loop(renderer):
    async def scenario():
        _, engine, _, loop = setup(renderer, tasks=4)

        async def broken(request):
            raise AttributeError("a bug")

        engine.generate = broken
        with pytest.raises(BaseExceptionGroup) as caught:
            await asyncio.wait_for(loop.run(), DEADLINE_S)
        return caught.value

    assert asyncio.run(scenario()).subgroup(AttributeError)
