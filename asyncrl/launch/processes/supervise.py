"""Keeps the processes of a run alive: a dead or hung process is started again at its address.

    serving --dies, or hangs for `silence_s`--> waiting (back-off) --> starting --ready--> serving
                                                   ^                      |
                                                   +------dies, late------+   `MAX_DEATHS` in a row end the run

A process that does not answer hangs where it makes no progress, either (`asyncrl.liveness`), or says itself that it
hangs.

A process that was to start after others, since they share a GPU, is ended with any of them and starts again when they
serve: what it holds of the memory would keep them from starting.

The deaths of a process count from zero again once its probe calls it stable. `MAX_DEATHS_WITHOUT_PROGRESS` deaths of
any processes without progress of the run end it, too. So does at once what a restart cannot help: a full disk, a wrong
configuration, a decision to stop, memory that ran out twice. Every death is written to `restarts.jsonl` with the time
until the process served again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.clock import stamp_s
from asyncrl.disk import unwritable
from asyncrl.errors import StorageError, UnavailableError
from asyncrl.launch.processes.death import address_taken, lacks_memory
from asyncrl.launch.processes.health_probes import HealthProbe
from asyncrl.launch.processes.process_group import ManagedProcess, ProcessGroup, describe_end
from asyncrl.liveness import SUSPENDED, Liveness, described_state
from asyncrl.services.command import MISCONFIGURED, STOPPED
from asyncrl.startup import KEY, Meter, StartDeadline

T = TypeVar("T")

log = logging.getLogger("asyncrl.launch")

TICK_S = 0.2
PROBE_EVERY_S = 2.0
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STALL_S = 5.0
"""A tick that is this much late means that this process was suspended, and could not probe the others."""
SILENT_S = 5.0
"""A process that has not answered for this long is looked at: whether it makes progress."""
MAX_DEATHS = 6
"""The most deaths of one process in a row, without being stable in between."""
MAX_DEATHS_WITHOUT_PROGRESS = 20
"""The most deaths of all processes together, without progress of the run in between."""
MAKE_ROOM = "free some space there, or make it writable, and resume the run"


@dataclass(slots=True)
class SupervisedProcess:
    """A process and its record of deaths."""

    process: ManagedProcess
    probe: HealthProbe
    start_timeout_s: float
    ends: bool = False
    """Whether exit code 0 means that its work is done."""
    after: Sequence[ManagedProcess] = ()
    """Processes that must serve before it starts."""
    state: str = "serving"
    since: float = 0.0
    """When it entered this state, or last answered a probe while serving. Monotonic seconds."""
    liveness: Liveness = field(default_factory=lambda: Liveness(0.0))
    """Its signs of life while it serves."""
    meter: Meter | None = None
    """Measures it since its latest start."""
    silent: bool = False
    """Whether it has been said that it does not answer."""
    started: float = 0.0
    start_deadline: StartDeadline | None = None
    """While it is starting."""
    pause_until: float = 0.0
    died: float = 0.0
    why: str = ""
    reason: str = ""
    """The error its log ended with at its latest death."""
    deaths: int = 0
    restarts: int = 0
    probing: asyncio.Task[bool] | None = None
    """The probe that is running."""


class Supervisor:
    """Supervises processes while other work runs; see the module. Times in seconds."""

    def __init__(
        self,
        process_group: ProcessGroup,
        record: Path,
        silence_s: float,
        check: Callable[[], None] = lambda: None,
        progress: Callable[[], int] = lambda: 0,
        node_timeout_s: float = float("inf"),
    ) -> None:
        self.process_group = process_group
        self.progress = progress
        """How far the run has come, such as steps and finished groups. Called when a process has died."""
        self.check = check
        """Called before a process is started again; an error that it raises ends the run."""
        self.node_timeout_s = node_timeout_s
        """How long a process waits for its lost host before it goes elsewhere."""
        self.record = record
        self.silence_s = silence_s
        self.supervised: list[SupervisedProcess] = []
        self._retired: dict[str, int] = {}
        """Restarts of processes that are no longer supervised."""
        self._highest_progress = -1
        self._deaths_without_progress = 0

    def watch(
        self,
        process: ManagedProcess,
        probe: HealthProbe,
        start_timeout_s: float,
        ends: bool = False,
        serving: bool = True,
        after: Sequence[ManagedProcess] = (),
    ) -> None:
        """Supervise a process that serves already, or is starting. after: those it may not be there before."""
        now = time.monotonic()
        state = "serving" if serving else "starting"
        liveness = Liveness(self.silence_s, now)
        one = SupervisedProcess(
            process, probe, start_timeout_s, ends, after, state, now, liveness, started=now
        )
        if not serving:
            one.start_deadline = process.start_deadline(start_timeout_s)
        self.supervised.append(one)

    def retire(self, process: ManagedProcess) -> None:
        """Leave a process to itself: it is neither probed nor started again, and its end is no death."""
        for one in [one for one in self.supervised if one.process is process]:
            if one.probing is not None:
                one.probing.cancel()
            self.supervised = [other for other in self.supervised if other is not one]
            self._retired[process.name] = self._retired.get(process.name, 0) + one.restarts

    def done(self, process: ManagedProcess) -> bool:
        """True when a process whose work ends has ended it."""
        return any(one.process is process and one.state == "done" for one in self.supervised)

    def serves(self, process: ManagedProcess) -> bool:
        """True for a process that has started and has not died since."""
        return any(one.process is process and one.state == "serving" for one in self.supervised)

    def restarts(self) -> dict[str, int]:
        """Return how often each process was restarted."""
        found = {name: restarts for name, restarts in self._retired.items() if restarts}
        for one in self.supervised:
            if one.restarts:
                found[one.process.name] = found.get(one.process.name, 0) + one.restarts
        return found

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` while supervising. Raises what it raises, or `UnavailableError` when a process is given up."""
        task = asyncio.ensure_future(work)
        guard = asyncio.ensure_future(self._supervise())
        try:
            await asyncio.wait({task, guard}, return_when=asyncio.FIRST_COMPLETED)
            if guard.done() and not task.done():
                guard.result()
            return await task
        finally:
            probes = [one.probing for one in self.supervised if one.probing is not None]
            for running in (task, guard, *probes):
                running.cancel()
            await asyncio.gather(task, guard, *probes, return_exceptions=True)
            for one in self.supervised:
                one.probing = None

    async def _supervise(self) -> None:
        last = float("-inf")
        while True:
            now = time.monotonic()
            for one in self.supervised:
                if now - last > STALL_S:
                    one.since = now
                    one.liveness.answer(now)
                    if one.start_deadline is not None:
                        one.start_deadline.restart()
                self._check(one, now)
            last = now
            await asyncio.sleep(TICK_S)

    def _check(self, one: SupervisedProcess, now: float) -> None:
        if one.state == "waiting":
            if problem := one.process.host.problem():
                self._wait_for_host(one, problem, now)
            elif now >= one.pause_until and self._may_start(one):
                self._restart(one, now)
        elif one.state != "done" and not one.process.alive():
            self._on_death(one, now, one.process.ending())
        elif one.state == "starting":
            if one.probe.ready():
                self._on_ready(one, now)
            elif one.start_deadline is not None and (missed := one.start_deadline.missed()):
                self._on_death(one, now, missed)
        elif one.state == "serving":
            self._probe(one, now)

    def _wait_for_host(self, one: SupervisedProcess, problem: str, now: float) -> None:
        """Move a process whose host has not returned in time. Raises `UnavailableError` when nowhere has room."""
        if now - one.pause_until > self.node_timeout_s and self.process_group.move(one.process):
            log.warning("%s: %s; it starts on another machine", one.process.name, problem)
            one.pause_until = now
            return
        if now - one.pause_until > one.start_timeout_s:
            raise UnavailableError(
                f"{one.process.name}: {problem}; it did not return within {KEY}={one.start_timeout_s:g} s. Start it "
                "again, or another node in its place, and resume the run"
            )

    def _probe(self, one: SupervisedProcess, now: float) -> None:
        if one.probing is None:
            if now - one.since >= PROBE_EVERY_S:
                if one.liveness.answered == one.since:
                    # Its silence counts from when it is asked.
                    one.liveness.answer(now)
                one.probing = asyncio.ensure_future(one.probe.alive())
        elif one.probing.done():
            if one.probing.result():
                self._on_answer(one, now)
            one.probing = None
        if hung := one.probe.hung() or self._hung(one, now):
            self._on_death(one, now, f"{hung} and was killed")
        elif one.deaths and one.probe.stable(now - one.started):
            one.deaths, one.reason = 0, ""

    def _on_answer(self, one: SupervisedProcess, now: float) -> None:
        if one.silent:
            log.warning(
                "%s answers again after %.0f s, in which it computed for %.0f s",
                one.process.name, now - one.liveness.answered, one.liveness.used_s,
            )  # fmt: skip
        one.since, one.silent = now, False
        one.liveness.answer(now)

    def _hung(self, one: SupervisedProcess, now: float) -> str:
        """Return why a process is hung that has not answered for a while, "" for one that lives."""
        silent_s = now - one.liveness.answered
        if silent_s < min(SILENT_S, self.silence_s / 2):
            return ""
        process = one.process
        one.meter = one.meter or process.running_on.meter(process.popen)
        state = described_state(process.popen.pid)
        # What it has started may compute on while it is suspended itself, and never be collected.
        if hung := one.liveness.hung(now, None if state == SUSPENDED else one.probe.meter() or one.meter):
            return f"{hung}; {state}," if state else hung
        if silent_s > self.silence_s and not one.silent:
            one.silent = True
            log.warning(
                "%s has not answered for %.0f s; it computes, and is left to it", process.name, silent_s
            )
        return ""

    def _on_death(self, one: SupervisedProcess, now: float, why: str) -> None:
        process = one.process
        if one.ends and process.popen.returncode == 0:
            one.state = "done"
            return
        if one.probing is not None:
            one.probing.cancel()
            one.probing = None
        self.process_group.kill(process)
        before, one.reason = one.reason, process.reason()
        if one.state == "serving":
            one.died, one.why = now, why
        if not process.host.problem():
            # A host that was lost says nothing about its processes.
            one.deaths += 1
            self._give_up(one, why, before)
        pause_s = 0.0 if one.deaths <= 1 else FIRST_PAUSE_S * 2.0 ** (one.deaths - 2)
        one.state, one.pause_until = "waiting", now + min(pause_s, LONGEST_PAUSE_S)
        text = f"{why}: {one.reason}" if one.reason else why
        log.warning("%s %s; starting it again", process.name, text)
        self._end_those_after(process)

    def _may_start(self, one: SupervisedProcess) -> bool:
        """False while a process that it starts after does not serve."""
        return all(other.state == "serving" for other in self.supervised if other.process in one.after)

    def _end_those_after(self, process: ManagedProcess) -> None:
        """End the processes that start after one that has ended."""
        for other in self.supervised:
            if process in other.after and other.state in ("serving", "starting"):
                self._end_with(other, process.name)

    def _end_with(self, one: SupervisedProcess, name: str) -> None:
        """End a process whose memory `name` needs to start. It starts again afterwards; that is no death of its own."""
        self._end(one, f"was ended with {name}, with which it shares a GPU")
        log.warning("%s %s; it starts again when that serves", one.process.name, one.why)

    def start_again(self, process: ManagedProcess, why: str) -> None:
        """End a process, so that it starts again, where it is to be then. That is no death of its own."""
        for one in self.supervised:
            if one.process is process:
                one.reason = ""
                self._end(one, why)
                self._end_those_after(process)

    def _end(self, one: SupervisedProcess, why: str) -> None:
        now = time.monotonic()
        if one.probing is not None:
            one.probing.cancel()
            one.probing = None
        self.process_group.kill(one.process)
        if one.state == "serving":
            one.died = now
        one.why = why
        one.state, one.pause_until = "waiting", now

    def _give_up(self, one: SupervisedProcess, why: str, before: str) -> None:
        """End the run where a restart would not help. Raises `StorageError`, `UnavailableError`."""
        process, code = one.process, one.process.popen.returncode
        if refused := unwritable(self.record.parent):
            raise StorageError(describe_end(process, why, f"{refused}; {MAKE_ROOM}"))
        if code == STOPPED or (code == MISCONFIGURED and one.ends):
            raise UnavailableError(describe_end(process, why))
        same = one.deaths > 1 and one.reason == before and not address_taken(before)
        if code == MISCONFIGURED and same:
            raise UnavailableError(describe_end(process, why, "twice in a row"))
        if lacks_memory(one.reason) and lacks_memory(before):
            raise UnavailableError(
                describe_end(process, why, "memory ran out twice; lower what this process needs")
            )
        if one.deaths >= MAX_DEATHS:
            raise UnavailableError(describe_end(process, why, f"{one.deaths} times in a row"))
        progress = self.progress()
        advanced = progress > self._highest_progress
        self._deaths_without_progress = 1 if advanced else self._deaths_without_progress + 1
        self._highest_progress = max(self._highest_progress, progress)
        if self._deaths_without_progress >= MAX_DEATHS_WITHOUT_PROGRESS:
            advice = f"processes died {self._deaths_without_progress} times without any progress of the run"
            raise UnavailableError(describe_end(process, why, advice))

    def _restart(self, one: SupervisedProcess, now: float) -> None:
        self.check()
        one.probe.reset()
        try:
            self.process_group.restart(one.process)
        except UnavailableError as error:
            # Its host was lost at this moment, or cannot be asked just now.
            log.warning("%s was not started: %s", one.process.name, error)
            one.pause_until = now + FIRST_PAUSE_S
            return
        one.state, one.since = "starting", now
        one.start_deadline = one.process.start_deadline(one.start_timeout_s)
        one.restarts += 1

    def _on_ready(self, one: SupervisedProcess, now: float) -> None:
        one.state, one.since, one.started, one.silent = "serving", now, now, False
        one.liveness, one.meter = Liveness(self.silence_s, now), None
        one.start_deadline = None
        if not one.restarts:
            return
        event: dict[str, Any] = {"time": stamp_s(), "name": one.process.name, "why": one.why}
        if one.reason:
            event["reason"] = one.reason
        with open(self.record, "a", encoding="utf-8") as file:
            file.write(json.dumps(event | {"down_s": round(now - one.died, 3)}) + "\n")
        log.warning("%s serves again after %.1f s", one.process.name, now - one.died)
