"""A whole cluster on the virtual clock, and what became of it.

TaskPlan -> ledger -> RolloutLoop, GroupRunner, EngineRouter -> SimulatedEngine     the first four are the real ones
              ^------- put -----------'
              '------- SimulatedTrainer -> versions -> engines
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from asyncrl.buffer.hooks.configured import hooks_of
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.simulation.buffer import SimulatedBuffer, WorkerConnection
from asyncrl.extensions.simulation.costs import Costs
from asyncrl.extensions.simulation.engine import EngineTimes, SimulatedEngine
from asyncrl.extensions.simulation.player import SimulatedPlayer
from asyncrl.extensions.simulation.trainer import SimulatedTrainer, Step
from asyncrl.extensions.simulation.virtual_loop import run_virtually
from asyncrl.extensions.simulation.workload import Workload
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.worker import RolloutLoop
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.concurrency import Concurrency
from asyncrl.services.engine.retrying import RetryingGenerator
from asyncrl.services.engine.router import EngineRouter
from asyncrl.tasks.tasks import FEED_FACTOR, TaskPlan
from asyncrl.types import Task

FEED_EVERY_S = 0.25
CAUSES = {
    "tools_s": "waiting for tools",
    "limit_s": "no group admitted (staleness limit)",
    "paused_s": "new weights, or the trainer's turn",
    "dead_s": "down",
}
"""Why an engine does nothing, by the field of `EngineTimes`."""
POLL_S = 60.0
"""How long a worker waits for a lease before it asks again. Calls that end without one only cost computing time."""
MAX_ROUTERS = 16
"""Routers that are simulated; more workers share them, since each router probes every engine every second."""


@dataclass(frozen=True, slots=True)
class Death:
    """A role that dies, and serves again later."""

    at_s: float
    role: str
    """"worker", "engine" or "trainer"."""
    index: int = 0
    down_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Idle:
    """Shares of the time after the first commit in which a role did nothing, by cause; they add up to 1 with `busy`."""

    busy: float
    causes: dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated run did. Rates are those after the first commit."""

    steps: Sequence[Step]
    groups_per_hour: float
    tokens_per_s: float
    """Sampled tokens of trained groups."""
    step_s: float
    staleness_mean: float
    staleness_max: int
    engines: Idle
    trainer: Idle
    mean_batch: float
    """Sequences that a busy engine decodes at once."""
    counts: dict[str, int]
    """Groups by what became of them."""


def simulate(
    config: Config,
    costs: Costs,
    workload: Workload,
    engines: int,
    steps: int = 0,
    workers: int = 0,
    deaths: Sequence[Death] = (),
    num_tasks: int = 0,
) -> Outcome:
    """Run `steps` steps of a recipe (all of its own for 0) on a simulated cluster. Deterministic.

    Raises `DeadlineError` where the run would end since no batch comes, `ConfigError` for deaths of what is not there.
    """
    return run_virtually(_simulate(config, costs, workload, engines, steps, workers, deaths, num_tasks))


async def _simulate(
    config: Config,
    costs: Costs,
    workload: Workload,
    engines: int,
    steps: int,
    workers: int,
    deaths: Sequence[Death],
    num_tasks: int,
) -> Outcome:
    cluster = Cluster(config, costs, workload, engines, workers or config.rollout.workers)
    try:
        await cluster.run(steps or config.train.num_steps, deaths, num_tasks)
        return cluster.outcome()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    finally:
        await cluster.close()


class Cluster:
    """The roles of a run."""

    def __init__(self, config: Config, costs: Costs, workload: Workload, engines: int, workers: int) -> None:
        self.config = config
        self.costs = costs
        self.buffer = SimulatedBuffer(
            Ledger(":memory:", LedgerSettings.of(config), hooks=hooks_of(config, planned=False))
        )
        self.engines = [SimulatedEngine(f"http://engine-{n}", costs.engine) for n in range(engines)]
        self.trainer = SimulatedTrainer(config, costs.trainer, self.buffer, self._publish, self._busy)
        self.routers = [
            EngineRouter(cast("list[EngineClient]", self.engines)) for _ in range(min(workers, MAX_ROUTERS))
        ]
        self._episodes = 0
        self.in_flight = config.rollout.groups_in_flight or max(1, config.slots // workers)
        self.workload = workload
        self.connections = [WorkerConnection(self.buffer) for _ in range(workers)]
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._trained: asyncio.Event = asyncio.Event()
        self._base = [EngineTimes() for _ in self.engines]
        """What the engines had spent at the first commit."""

    async def run(self, steps: int, deaths: Sequence[Death], num_tasks: int) -> None:
        """Run to the end of the steps or of the plan."""
        for death in deaths:
            roles = {"worker": len(self.connections), "engine": len(self.engines), "trainer": 1}
            if not 0 <= death.index < roles.get(death.role, 0):
                raise ConfigError(f"deaths: there is no {death.role} {death.index}")
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._feed(num_tasks)),
                group.create_task(self.buffer.service.reap()),
                *(group.create_task(self._kill(death)) for death in deaths),
            ]
            for index in range(len(self.connections)):
                self._tasks["worker", index] = group.create_task(self._worker(index).run())
            await self._train(steps)
            for connection in self.connections:
                # What is given back while the workers end would be leased again, in no particular order.
                connection.cut = True
            for task in [*background, *self._tasks.values()]:
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """End what still runs."""
        for router in self.routers:
            await router.close()
        self.buffer.ledger.close()

    def outcome(self) -> Outcome:
        """Return what the run did."""
        steps = self.trainer.steps
        counted = steps[1:] or steps
        seconds = counted[-1].ended_s - (steps[0].ended_s if len(steps) > 1 else 0.0)
        seconds = max(seconds, 1e-9)
        sampled = sum(step.sampled_tokens for step in counted)
        stats = self.buffer.ledger.stats()
        waits = sum(step.wait_s for step in counted) / seconds
        publishes = sum(step.publish_s for step in counted) / seconds
        return Outcome(
            steps=steps,
            groups_per_hour=3600 * sum(step.groups for step in counted) / seconds,
            tokens_per_s=sampled / seconds,
            step_s=seconds / len(counted),
            staleness_mean=sum(s.staleness_mean * s.sampled_tokens for s in counted) / max(1, sampled),
            staleness_max=max(step.staleness_max for step in steps),
            engines=self._engine_time(),
            trainer=Idle(
                sum(step.train_s for step in counted) / seconds,
                {"waiting for a batch": waits, "publishing": publishes},
            ),
            mean_batch=self._mean_batch(),
            counts={
                name: int(stats[name]) for name in ("admitted", "trained", "dropped", "failed", "expired")
            },
        )

    def _worker(self, index: int) -> RolloutLoop:
        router = self.routers[index % len(self.routers)]
        generator = RetryingGenerator(router, self.config.outage_timeout_s)
        player = SimulatedPlayer(
            generator, self.workload, self.config.rollout.group_size, self._count_episodes, self._progress
        )
        return RolloutLoop(
            name=f"rollout-{index}",
            buffer=self.connections[index],
            runner=EpisodeGroupRunner(player),
            groups_in_flight=self.in_flight,
            lease_s=self.config.rollout.lease_s,
            episode_timeout_s=self.config.rollout.episode_timeout_s,
            poll_s=POLL_S,
            limit=Concurrency(router.loads, self.in_flight).limit,
        )

    def _progress(self) -> float:
        """Return how many episodes the newest policy was trained on."""
        return self.trainer.version * self.config.buffer.groups_per_step * self.config.rollout.group_size

    def _count_episodes(self, change: int) -> None:
        was_needed = self._episodes > 0
        self._episodes += change
        if (self._episodes > 0) != was_needed:
            for engine in self.engines:
                engine.set_needed(not was_needed)

    async def _train(self, steps: int) -> None:
        while True:
            task = self._tasks["trainer", 0] = asyncio.ensure_future(self.trainer.run(steps))
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()
                return
            await self._trained.wait()
            self._trained.clear()

    async def _feed(self, num_tasks: int) -> None:
        plan = TaskPlan(_tasks(), num_tasks, FEED_FACTOR * self.config.buffer.groups_per_step)
        while True:
            await plan.feed(cast("BufferClient", self.buffer))
            await asyncio.sleep(FEED_EVERY_S)

    async def _publish(self, version: int) -> None:
        """Bring a version to all engines at once, as the publisher does."""
        finish = self.config.train.schedule == "asynchronous"
        keep, swap_s = self.config.engine.keep_kv, self.costs.trainer.swap_s
        await asyncio.gather(*(engine.take_over(version, swap_s, finish, keep) for engine in self.engines))
        if version == 1:
            self._base = [replace(engine.settle_times()) for engine in self.engines]

    async def _busy(self, busy: bool) -> None:
        """The trainer begins or ends a computation: engines slow down, or give the GPU up."""
        speed = self.costs.shared.generation_speed(busy)
        for engine in self.engines:
            engine.set_speed(speed)
            if self.costs.by_turns and busy:
                engine.pause()
        if self.costs.by_turns:
            await asyncio.sleep(self.costs.turn_s)
            if not busy:
                for engine in self.engines:
                    engine.resume()

    async def _kill(self, death: Death) -> None:
        await asyncio.sleep(death.at_s)
        if death.role == "engine":
            engine = self.engines[death.index]
            engine.die()
            await asyncio.sleep(death.down_s)
            engine.restart(self.buffer.ledger.version)
        elif death.role == "worker":
            self.connections[death.index].cut = True
            await _end(self._tasks["worker", death.index])
            await asyncio.sleep(death.down_s)
            self.connections[death.index] = WorkerConnection(self.buffer)
            self._tasks["worker", death.index] = asyncio.ensure_future(self._worker(death.index).run())
        else:
            await _end(self._tasks["trainer", 0])
            await asyncio.sleep(death.down_s)
            self.trainer.restart()
            for engine in self.engines:
                await engine.take_over(self.trainer.version, self.costs.trainer.swap_s, False, False)
            self._trained.set()

    def _engine_time(self) -> Idle:
        spent = dict.fromkeys(("busy_s", *CAUSES), 0.0)
        for engine, base in zip(self.engines, self._base, strict=True):
            times = engine.settle_times()
            for name in spent:
                spent[name] += getattr(times, name) - getattr(base, name)
        total = max(1e-9, sum(spent.values()))
        return Idle(spent["busy_s"] / total, {text: spent[name] / total for name, text in CAUSES.items()})

    def _mean_batch(self) -> float:
        times = [engine.settle_times() for engine in self.engines]
        return sum(t.sequence_s for t in times) / max(1e-9, sum(t.busy_s for t in times))


def _tasks() -> Iterator[Task]:
    return (Task(id=f"{number:08d}", env="simulated", seed=number) for number in itertools.count())


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
