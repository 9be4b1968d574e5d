"""Applies what `autoscale` decides: starts further workers, environment services and engines, and retires others.

    seen     grow     start -> it serves -> it takes part
             retire   takes nothing new -> has nothing left, or the deadline -> SIGTERM -> it has left the run

One change at a time. A process that leaves is first told, or those who use it are: a worker leases no further group and
puts those that it plays, an engine or environment service gets no new requests or sessions. What it has not finished
at the deadline is played again by others. Each change is a line for the user and one in `scaling.jsonl`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl.credentials import authorization
from asyncrl.errors import AsyncRLError
from asyncrl.extensions.autoscale.decisions import Change, Decision, Load, Observation, decide, trim
from asyncrl.extensions.autoscale.settings import ScaleConfig
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.launch.reports.activity import ANSWER_S, states
from asyncrl.launch.roles.process_changes import (
    FailedStarts,
    Growth,
    Retirement,
    observe_every_s,
    trainer_waits,
    write_event,
)
from asyncrl.launch.roles.roles import Roles
from asyncrl.launch.run_monitors import MonitorContext, RunMonitor
from asyncrl.services.buffer.client import BufferClient
from asyncrl.tls import client_context


@dataclass(slots=True)
class _Seen:
    """Processor time of processes when they were last observed."""

    time_s: float
    cpu_s: dict[str, float] = field(default_factory=dict)


class Scaler(RunMonitor):
    """Scales the roles of a run between their limits. Call `tick` again and again, from the main thread."""

    def __init__(self, roles: Roles, buffer: BufferClient, folder: Path, say: Callable[[str], None]) -> None:
        config = roles.config
        self.roles, self.buffer, self.say = roles, buffer, say
        given = config.section(ScaleConfig)
        self.limits = given.numbers
        self.cooldown_s = given.cooldown_s
        self.deadline_s = config.rollout.episode_timeout_s
        """How long a process that leaves may finish what it has."""
        self.folder = folder
        self._window: list[Observation] = []
        self._changes: dict[str, Change] = {}
        self._failed = FailedStarts(self.cooldown_s)
        self._decision = Decision("", 0, "")
        """What is under way, with its process."""
        self._change: Growth | Retirement | None = None
        self._looked = float("-inf")
        self._seen = _Seen(0.0)

    @property
    def counts(self) -> dict[str, int]:
        """Processes by role that take part."""
        return {role: len(self.roles.of_role(role)) for role in ("rollout", "env", "engine")}

    async def tick(self, stats: Mapping[str, Any]) -> bool:
        """Observe, and go on with a change or begin one. stats: the buffer's latest counts.

        Return True when processes that others must know of have come or are leaving: then the job is to be described.
        """
        now = time.monotonic()
        if now - self._looked < observe_every_s(self.cooldown_s):
            return False
        self._looked = now
        if isinstance(self._change, Growth):
            return self._grow(self._change)
        if isinstance(self._change, Retirement):
            await self._retire(self._change)
            return False
        self._window = trim([*self._window, await self._observe(stats)], self.cooldown_s)
        decision = decide(self._limits_now(), self.counts, self._window, self._changes, self.cooldown_s)
        self._decision = decision
        if decision.step > 0:
            self._start(decision)
        elif decision.step < 0:
            process = self.roles.retire(decision.role)
            self._change = Retirement(decision.role, process, now)
            self._note(f"{process.name} finishes what it has and leaves")
            return True
        return False

    def _limits_now(self) -> dict[str, tuple[int, int]]:
        """Return the limits; where the last start has just failed, the upper one is the number that there is."""
        held = self._failed.held()
        return {
            role: (least, self.counts[role] if role in held else most)
            for role, (least, most) in self.limits.items()
        }

    def _start(self, decision: Decision) -> None:
        """Start one more process."""
        try:
            process = self.roles.start_one(decision.role)
        except AsyncRLError as error:
            self._give_up(str(error))
            return
        if process is None:
            self._give_up("no machine has room for another one")
            return
        self._change = Growth(process, process.start_deadline(self.roles.config.run.start_timeout_s))

    def _grow(self, growth: Growth) -> bool:
        """Have a process take part once it serves; True then."""
        process, role = growth.process, self._decision.role
        if growth.serves:
            self.roles.admit(role, process)
            self._failed.succeeded(role)
            self._note(f"{process.name} takes part")
            self._done()
            return True
        if failure := growth.failure():
            self.roles.process_group.forget(process)
            self._give_up(f"{process.name} {failure}")
        return False

    def _give_up(self, why: str) -> None:
        """Keep the number that there is for a while."""
        role, count = self._decision.role, self.counts[self._decision.role]
        wait_s = self._failed.failed(role)
        self.say(f"scale.{role}: stays at {count} for {wait_s:g} s: {why}")
        self._write(count=count, failed=why, wait_s=wait_s)
        self._done()

    async def _retire(self, one: Retirement) -> None:
        """Wait for what a process still has, end it, and note how it left."""
        process, role = one.process, one.role
        if not await one.ended(self.roles.credentials, self.deadline_s, await self._heard(one)):
            return
        self.roles.process_group.forget(process)
        lost = 0
        if role == "rollout":
            # Of one that gave them back, or has none, nothing is left.
            lost = await self.buffer.reclaim(process.name)
            # The next worker has its name, and is another process.
            await self.buffer.readmit(process.name)
        self.say(f"scale.{role}: {process.name} has left: {one.description()}")
        self._write(count=self.counts[role], leases_lost=lost, **one.record())
        self._done()

    async def _heard(self, one: Retirement) -> bool:
        """True when nobody gives a process anything any more."""
        if one.role != "rollout":
            return one.heard
        if not one.informed and one.ending is None and one.process.alive():
            one.informed = await self._drain(one.process)
        return one.informed

    async def _drain(self, process: ManagedProcess) -> bool:
        """Tell a worker to lease nothing more; False while it does not answer."""
        connector = aiohttp.TCPConnector(ssl=client_context() or True)
        headers = authorization(self.roles.credentials.bearer("rollout"))
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        try:
            async with (
                aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as http,
                http.post(f"{process.url}/v1/drain") as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _done(self) -> None:
        """Begin to observe anew."""
        self._changes[self._decision.role] = Change(time.monotonic(), self._decision.step)
        self._change, self._window = None, []

    def _note(self, what: str) -> None:
        decision, count = self._decision, self.counts[self._decision.role]
        self.say(f"scale.{decision.role}: {count - decision.step} -> {count}: {decision.reason}; {what}")
        self._write(count=count, what=what)

    def _write(self, **more: Any) -> None:
        decision = self._decision
        about = {"role": decision.role, "step": decision.step, "reason": decision.reason}
        write_event(self.folder, about | more)

    async def _observe(self, stats: Mapping[str, Any]) -> Observation:
        config, roles = self.roles.config, self.roles
        rollout, env, engine = await asyncio.gather(
            *(states(role, roles.of_role(role), roles.credentials) for role in ("rollout", "env", "engine"))
        )
        now = time.monotonic()
        before, self._seen = self._seen, _Seen(now)
        cores = {
            name: max(0.0, state["cpu_s"] - before.cpu_s[name]) / max(1e-3, now - before.time_s)
            for name, state in {**rollout, **env}.items()
            if name in before.cpu_s
        }
        self._seen.cpu_s = {name: state["cpu_s"] for name, state in {**rollout, **env}.items()}
        found = {
            "rollout": worker_load(rollout, cores),
            "env": env_load(env, cores, config.env.processes),
            "engine": engine_load(engine, rollout, config.groups_in_flight),
        }
        return Observation(
            now,
            stats["version"],
            trainer_waits(config.train.schedule, stats),
            stats["ready"] / config.buffer.groups_per_step,
            stats["free_slots"],
            stats["pending"] > 0 and not stats["paused"],
            {role: load for role, load in found.items() if load is not None},
        )


def worker_load(found: Mapping[str, Mapping[str, Any]], cores: Mapping[str, float]) -> Load | None:
    """Return the load of workers by what they say of themselves; None when none has answered that gets leases.

    cores: processor time of each, in cores. A worker's own code runs on one.
    """
    leasing = {name: state for name, state in found.items() if "running" in state and not state["refused"]}
    if not leasing:
        return None
    most = sum(max(1, state["groups_limit"]) for state in leasing.values())
    busy = sum(len(state["running"]) for state in leasing.values()) / most
    return Load(min(1.0, busy), cpu=min(1.0, _mean_cores(leasing, cores)))


def env_load(
    found: Mapping[str, Mapping[str, Any]], cores: Mapping[str, float], processes: int
) -> Load | None:
    """Return the load of environment services, each with so many worker processes; 0 for none."""
    if not found:
        return None
    places = sum(state["places"] for state in found.values())
    sessions = sum(state["sessions"] for state in found.values())
    queued = sum(state["queued"] for state in found.values())
    cpu = _mean_cores(found, cores) / max(1, processes)
    return Load(min(1.0, sessions / places), queued / max(1, sessions), min(1.0, cpu))


def engine_load(
    found: Mapping[str, Mapping[str, Any]], workers: Mapping[str, Mapping[str, Any]], groups_in_flight: int
) -> Load | None:
    """Return the load of engines. groups_in_flight: of a worker. Workers that play fewer since the caches of engines
    are full keep requests from waiting there: the groups that they hold back count as waiting."""
    if not found:
        return None
    running = sum(state["running"] for state in found.values())
    waiting = sum(state["waiting"] for state in found.values()) / max(1, running)
    limits = [state["groups_limit"] for state in workers.values() if "groups_limit" in state]
    held_back = sum(max(0, groups_in_flight - limit) for limit in limits) / max(1, sum(limits))
    busy = sum(state["running"] > 0 for state in found.values()) / len(found)
    return Load(busy, max(waiting, held_back))


def _mean_cores(found: Mapping[str, Any], cores: Mapping[str, float]) -> float:
    return sum(cores.get(name, 0.0) for name in found) / len(found)


def scaling(context: MonitorContext) -> Scaler:
    """Return the monitor of a run with `[scale]`."""
    return Scaler(context.roles, context.buffer, context.folder, context.say)
