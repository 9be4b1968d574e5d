"""Keeps the processes of a run alive: a dead or silent child is started again where it was.

    serving --dies, or silent for `silence_s`--> waiting (back-off) --> starting --ready--> serving
                                                    ^                      |
                                                    +------dies, late------+   `MAX_DEATHS` in a row end the run

A child whose signs say that it is steady has a clean record again; `MAX_FRUITLESS` deaths between which the run has
not come any further end it, too. So does at once what a restart cannot mend: a disk that takes nothing more, a wrong
configuration, a decision to stop, memory that was lacking at the same place twice. Every death is written to
`restarts.jsonl` together with the time until the child served again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from asyncrl.disk import unwritable
from asyncrl.errors import StorageError, UnavailableError
from asyncrl.launch.death import address_taken, lacks_memory
from asyncrl.launch.process_group import Child, Family, obituary
from asyncrl.services.command import MISCONFIGURED, STOPPED

T = TypeVar("T")

log = logging.getLogger("asyncrl.launch")

TICK_S = 0.2
PROBE_EVERY_S = 2.0
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STALL_S = 5.0
"""A tick that comes this much late was stopped with this process: nobody could be heard."""
MAX_DEATHS = 6
"""Of one child in a row, without having been steady in between."""
MAX_FRUITLESS = 20
"""Of all children together, without any progress of the run in between."""
MAKE_ROOM = "make room there, or let it be written, and go on with the run"


class Signs(Protocol):
    """How to tell whether a child serves. Neither call may block the event loop."""

    def forget(self) -> None:
        """Called before the child is started again."""
        ...

    def ready(self) -> bool: ...

    def steady(self, serving_s: float) -> bool:
        """True when it has served long or well enough for earlier deaths not to count any more."""
        ...

    async def alive(self) -> bool:
        """True when it gave a sign of life."""
        ...


@dataclass(slots=True)
class Watched:
    """A child and its record."""

    child: Child
    signs: Signs
    start_timeout_s: float
    ends: bool = False
    """Whether exit code 0 means that its work is done."""
    state: str = "serving"
    since: float = 0.0
    """When it came into this state, or last gave a sign of life while serving. Monotonic seconds."""
    started: float = 0.0
    pause_until: float = 0.0
    died: float = 0.0
    why: str = ""
    reason: str = ""
    """The error its log ended with at its newest death."""
    deaths: int = 0
    restarts: int = 0
    probe: asyncio.Task[bool] | None = None


class Supervisor:
    """Watches children while other work goes on beside it; see the module. Times in seconds."""

    def __init__(
        self,
        family: Family,
        record: Path,
        silence_s: float,
        check: Callable[[], None] = lambda: None,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        self.family = family
        self.progress = progress
        """How far the run has come: steps and finished groups, say. Asked when a child has died."""
        self.check = check
        """Called before a child is started again; what it raises ends the run."""
        self.record = record
        self.silence_s = silence_s
        self.watched: list[Watched] = []
        self._height = -1
        self._fruitless = 0

    def watch(
        self, child: Child, signs: Signs, start_timeout_s: float, ends: bool = False, serving: bool = True
    ) -> None:
        """Take charge of a child, which serves already or is about to."""
        now = time.monotonic()
        state = "serving" if serving else "starting"
        self.watched.append(Watched(child, signs, start_timeout_s, ends, state, since=now, started=now))

    def done(self, child: Child) -> bool:
        """True when a child with an end has reached it."""
        return any(w.child is child and w.state == "done" for w in self.watched)

    def restarts(self) -> dict[str, int]:
        """Return how often each child was started again."""
        return {w.child.name: w.restarts for w in self.watched if w.restarts}

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` while watching. Raises what it raises, or `UnavailableError` when a child is given up."""
        task = asyncio.ensure_future(work)
        guard = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({task, guard}, return_when=asyncio.FIRST_COMPLETED)
            if guard.done() and not task.done():
                guard.result()
            return await task
        finally:
            probes = [w.probe for w in self.watched if w.probe is not None]
            for one in (task, guard, *probes):
                one.cancel()
            await asyncio.gather(task, guard, *probes, return_exceptions=True)
            for watched in self.watched:
                watched.probe = None

    async def _watch(self) -> None:
        last = float("-inf")
        while True:
            now = time.monotonic()
            for watched in self.watched:
                if now - last > STALL_S:
                    watched.since = now
                self._look(watched, now)
            last = now
            await asyncio.sleep(TICK_S)

    def _look(self, watched: Watched, now: float) -> None:
        if watched.state == "waiting":
            if now >= watched.pause_until:
                self._restart(watched, now)
        elif watched.state != "done" and not watched.child.alive():
            self._died(watched, now, watched.child.ending())
        elif watched.state == "starting":
            if watched.signs.ready():
                self._serves(watched, now)
            elif now - watched.since > watched.start_timeout_s:
                self._died(watched, now, f"did not start within {watched.start_timeout_s:g} s")
        elif watched.state == "serving":
            self._listen(watched, now)

    def _listen(self, watched: Watched, now: float) -> None:
        if watched.probe is None:
            if now - watched.since >= PROBE_EVERY_S:
                watched.probe = asyncio.ensure_future(watched.signs.alive())
        elif watched.probe.done():
            if watched.probe.result():
                watched.since = now
            watched.probe = None
        if now - watched.since > self.silence_s:
            self._died(watched, now, f"gave no sign of life for {self.silence_s:g} s and was killed")
        elif watched.deaths and watched.signs.steady(now - watched.started):
            watched.deaths, watched.reason = 0, ""

    def _died(self, watched: Watched, now: float, why: str) -> None:
        child = watched.child
        if watched.ends and child.process.returncode == 0:
            watched.state = "done"
            return
        if watched.probe is not None:
            watched.probe.cancel()
            watched.probe = None
        self.family.kill(child)
        before, watched.reason = watched.reason, child.reason()
        if watched.state == "serving":
            watched.died, watched.why = now, why
        watched.deaths += 1
        self._give_up(watched, why, before)
        pause_s = 0.0 if watched.deaths == 1 else FIRST_PAUSE_S * 2.0 ** (watched.deaths - 2)
        watched.state, watched.pause_until = "waiting", now + min(pause_s, LONGEST_PAUSE_S)
        told = f"{why}: {watched.reason}" if watched.reason else why
        log.warning("%s %s; starting it again", child.name, told)

    def _give_up(self, watched: Watched, why: str, before: str) -> None:
        """End the run where starting the child again would not help. Raises `StorageError`, `UnavailableError`."""
        child, code = watched.child, watched.child.process.returncode
        if refused := unwritable(self.record.parent):
            raise StorageError(obituary(child, why, f"{refused}; {MAKE_ROOM}"))
        if code == STOPPED or (code == MISCONFIGURED and watched.ends):
            raise UnavailableError(obituary(child, why))
        same = watched.deaths > 1 and watched.reason == before and not address_taken(before)
        if code == MISCONFIGURED and same:
            raise UnavailableError(obituary(child, why, "twice in a row"))
        if lacks_memory(watched.reason) and lacks_memory(before):
            raise UnavailableError(
                obituary(child, why, "memory was lacking twice; lower what this process needs")
            )
        if watched.deaths >= MAX_DEATHS:
            raise UnavailableError(obituary(child, why, f"{watched.deaths} times in a row"))
        height = self.progress()
        self._fruitless = 1 if height > self._height else self._fruitless + 1
        self._height = max(self._height, height)
        if self._fruitless >= MAX_FRUITLESS:
            advice = f"processes died {self._fruitless} times while the run came no further"
            raise UnavailableError(obituary(child, why, advice))

    def _restart(self, watched: Watched, now: float) -> None:
        self.check()
        watched.signs.forget()
        self.family.restart(watched.child)
        watched.state, watched.since = "starting", now
        watched.restarts += 1

    def _serves(self, watched: Watched, now: float) -> None:
        watched.state, watched.since, watched.started = "serving", now, now
        if not watched.restarts:
            return
        event: dict[str, Any] = {"time": time.time(), "name": watched.child.name, "why": watched.why}
        if watched.reason:
            event["reason"] = watched.reason
        with open(self.record, "a", encoding="utf-8") as file:
            file.write(json.dumps(event | {"down_s": round(now - watched.died, 3)}) + "\n")
        log.warning("%s serves again after %.1f s", watched.child.name, now - watched.died)
