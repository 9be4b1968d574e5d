"""The loop of a rollout worker: lease, run the group, put; several groups at once.

    buffer --lease--> slot 1..n --episodes--> engine, environments
       ^                 |
       +------put--------+            renewals, by default every third of a lease, keep the slot

A slot waits for the buffer (long poll), never for another slot's group. A lost lease cancels its group: the buffer
has given the task to another worker. The loop ends when the buffer says the plan is done, or on `drain`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.clock import now_s, stamp_s
from asyncrl.errors import (
    AsyncRLError,
    ConflictError,
    InputError,
    QuarantineError,
    StaleError,
    UnavailableError,
)
from asyncrl.outage_log import OutageLog
from asyncrl.rollout.group import GroupRunner
from asyncrl.tracing import group_span, span
from asyncrl.types import FailureClass, Group, Lease

log = logging.getLogger("asyncrl.rollout")

END_TIMEOUT_S = 5.0
"""How long the end of a lease waits for a buffer that does not answer."""
POLL_SPREAD = (0.5, 1.5)
"""The shortest and the longest time that one call for a lease waits, as multiples of `poll_s`."""
LIMIT_POLL_S = 0.25
"""How often a slot above the limit checks it again."""
ASK_AGAIN_S = 3.0
"""How long a worker waits that was refused a lease."""
POLICY_ASK_AGAIN_S = 60.0
"""How long it waits that the buffer of a further policy refused. It has to lease a task to ask, and a run that has no
other worker must see it idle meanwhile to end."""
MOST_ASKING = 8
"""Slots that ask for a lease at once; further free ones wait for their turn. Each long poll that comes back empty costs
worker and buffer a request, and there may be hundreds of free slots. A freed batch is leased in a few round trips."""


class LeaseSource(Protocol):
    """The part of the buffer a worker uses."""

    async def lease(self, worker: str, wait_s: float) -> Lease | None: ...
    async def renew(self, lease_id: str) -> float: ...
    async def release(self, lease_id: str) -> object: ...
    async def fail(self, lease_id: str, failure: FailureClass, error: str) -> object: ...
    async def put(self, group: Group) -> object: ...
    async def reclaim(self, worker: str) -> int: ...


@dataclass(slots=True)
class WorkerCounters:
    """What a worker has done, for `/v1/status` and `/metrics`."""

    groups: int = 0
    episodes: Counter[str] = field(default_factory=Counter)
    """By status, and by failure class for failed ones."""
    turns: int = 0
    sampled_tokens: int = 0
    context_tokens: int = 0
    cached_tokens: int = 0
    engine_s: float = 0.0
    env_s: float = 0.0
    history_forks: int = 0
    """Turns before which the chat template would have rewritten what the policy had read or written."""
    leases_lost: int = 0
    started: float = field(default_factory=stamp_s)

    def add(self, group: Group) -> None:
        self.groups += 1
        for trajectory in group.trajectories:
            self.episodes[trajectory.failure or trajectory.status] += 1
            self.turns += len(trajectory.turns)
            self.sampled_tokens += trajectory.num_sampled
            self.context_tokens += sum(turn.start for turn in trajectory.turns)
            self.cached_tokens += int(trajectory.info.get("cached_tokens", 0))
            self.history_forks += int(trajectory.info.get("history_forks", 0))
            self.engine_s += trajectory.timing.get("engine_s", 0.0)
            self.env_s += trajectory.timing.get("env_s", 0.0)


class RolloutLoop:
    """Runs `groups_in_flight` slots until drained."""

    def __init__(
        self,
        name: str,
        buffer: LeaseSource,
        runner: GroupRunner,
        groups_in_flight: int,
        lease_s: float,
        episode_timeout_s: float,
        poll_s: float = 5.0,
        limit: Callable[[], int] | None = None,
        renew_every_s: float = 0.0,
    ) -> None:
        self.name = name
        self.limit = limit or (lambda: groups_in_flight)
        """Groups that may run now, at most `groups_in_flight`."""
        self._asking = 0
        """Calls for a lease that wait for their answer."""
        self._turns = asyncio.Semaphore(MOST_ASKING)
        self.buffer = buffer
        self.runner = runner
        self.groups_in_flight = groups_in_flight
        self.lease_s = lease_s
        self.episode_timeout_s = episode_timeout_s
        self.poll_s = poll_s
        self._random = random.Random(name)
        self.renew_every_s = renew_every_s or lease_s / 3
        self.counters = WorkerCounters()
        self.running: dict[str, Lease] = {}
        self.refused = ""
        """Why a buffer refuses this worker leases; it asks now and then whether it has been readmitted."""
        self._ask_again_s = 0.0
        self._draining = asyncio.Event()
        self._unanswered = False
        """Whether the latest call for a lease had no answer."""
        self._lease_outage = OutageLog(log, "no leases")
        self._renewal_outage = OutageLog(log, "leases are not renewed")

    @property
    def draining(self) -> bool:
        """True when no further leases are taken."""
        return self._draining.is_set()

    def drain(self) -> None:
        """Take no further leases; `run` returns when the running groups are put."""
        self._draining.set()

    async def run(self) -> None:
        """Run until drained. An unexpected error in any slot ends all of them: a bug is a crash."""
        lost = await self.buffer.reclaim(self.name)
        if lost:
            log.warning("an earlier %s died with %d leases; their tasks are pending again", self.name, lost)
        async with asyncio.TaskGroup() as slots:
            for _ in range(self.groups_in_flight):
                slots.create_task(self._slot())

    async def _slot(self) -> None:
        while not self._draining.is_set():
            async with self._turns:
                asked_s = stamp_s()
                lease = await self._lease()
            if lease is not None and self._draining.is_set():
                # Granted to a call that waited.
                await self._give_back(lease)
            elif lease is not None:
                with group_span(
                    lease.id, asked_s, task=lease.task.id, version=lease.version, worker=self.name
                ):
                    await self._work(lease)

    async def _lease(self) -> Lease | None:
        """Return a lease, None where there is none now or will be no further ones."""
        if self.refused:
            # The launcher would restart the process if it ended.
            await self._pause(self._ask_again_s)
        if len(self.running) + self._asking >= self.limit():
            await self._pause(LIMIT_POLL_S)
        elif not self._draining.is_set():
            self._asking += 1
            asked_again = bool(self.refused)
            try:
                # Workers that found no slot at the same moment must not all ask again at the same moment.
                lease = await self.buffer.lease(self.name, self.poll_s * self._random.uniform(*POLL_SPREAD))
                if self._unanswered:
                    self._unanswered = False
                    self._lease_outage.ended()
                if self.refused and not asked_again:
                    # Asked before a buffer refused this worker: no answer to whether it still does.
                    if lease is not None:
                        await self._give_back(lease)
                    return None
                if self.refused:
                    log.warning("leases are granted again")
                    self.refused = ""
                return lease
            except (UnavailableError, TimeoutError, OSError) as error:
                self._lease_outage.failed(error, self._unanswered)
                self._unanswered = True
                await self._pause(1.0)
            except ConflictError as error:
                self._stop_leasing(error, ASK_AGAIN_S)
            finally:
                self._asking -= 1
        return None

    def _stop_leasing(self, error: ConflictError, ask_again_s: float) -> None:
        if not self.refused:
            log.error("no leases for now: %s", error)
        self.refused, self._ask_again_s = str(error), ask_again_s

    async def _work(self, lease: Lease) -> None:
        self.running[lease.id] = lease
        work = asyncio.ensure_future(self.runner.run_group(lease, self.name, self.episode_timeout_s))
        keeper = asyncio.ensure_future(self._keep(lease))
        try:
            await asyncio.wait({work, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.counters.leases_lost += 1
                log.warning("lease %s of task %s lost: %s", lease.id, lease.task.id, keeper.exception())
                return
            try:
                group = work.result()
            except QuarantineError as error:
                # The buffer of a further policy refuses this worker.
                self._stop_leasing(error, POLICY_ASK_AGAIN_S)
                await self._give_back(lease)
                return
            self.counters.add(group)
            with span("put"):
                await self._put(group)
        except asyncio.CancelledError:
            await self._give_back(lease)
            raise
        finally:
            del self.running[lease.id]
            for task in (work, keeper):
                task.cancel()
            await asyncio.gather(work, keeper, return_exceptions=True)

    async def _keep(self, lease: Lease) -> None:
        """Renew until cancelled; ends by raising when the lease is gone."""
        failing = False
        try:
            while True:
                await asyncio.sleep(self.renew_every_s)
                try:
                    await self.buffer.renew(lease.id)
                    if failing:
                        self._renewal_outage.ended()
                    failing = False
                except (UnavailableError, TimeoutError, OSError) as error:
                    self._renewal_outage.failed(error, failing)
                    failing = True
        finally:
            if failing:
                self._renewal_outage.ended(worked=False)

    async def _put(self, group: Group) -> None:
        """Put the group. The call is repeated through outages, since a put of the same lease counts once.

        A group that the buffer refuses, for example as too large, is lost, but the worker continues: the lease ends at
        once with the reason, and the task is played again or fails for good.
        """
        deadline = now_s() + self.lease_s
        while True:
            try:
                await self.buffer.put(group)
                return
            except ConflictError as error:
                # The lease is gone, and another worker may have the task.
                self.counters.leases_lost += 1
                log.error("group %s refused: %s", group.id, error)
                return
            except (StaleError, InputError) as error:
                self.counters.leases_lost += 1
                log.error("group %s refused: %s", group.id, error)
                failed = self.buffer.fail(group.id, FailureClass.INFRASTRUCTURE, f"group refused: {error}")
                await self._end_lease(group.id, failed)
                return
            except (UnavailableError, TimeoutError, OSError) as error:
                if now_s() > deadline:
                    log.error("group %s not delivered: %s", group.id, error)
                    return
                await self._pause(1.0)

    async def _give_back(self, lease: Lease) -> None:
        await self._end_lease(lease.id, self.buffer.release(lease.id))

    async def _end_lease(self, lease_id: str, call: Coroutine[Any, Any, Any]) -> None:
        """Tell the buffer that a lease ends; if that fails, the lease expires."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await call
        except (AsyncRLError, TimeoutError, OSError) as error:
            log.warning("lease %s not given back: %s", lease_id, error)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            return
