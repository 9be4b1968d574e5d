"""Worker processes that run sessions: pinned, watched, replaced.

starting -> ready -> dead      killed or crashed; its sessions are lost, a new one starts after a back-off
                  -> hung      no answer for `hang_s`: killed, then as dead
                  -> retired   a call holds a thread for `hang_s` past its deadline: no new sessions, a new one
                               starts at once, and it is killed with its last session or after `RETIRE_S`
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from asyncrl.env.hosting.runtime import CLOSE_TIMEOUT_S, RESET_TIMEOUT_S, OnLost, Opened
from asyncrl.env.protocol import Action, Step
from asyncrl.errors import AsyncRLError, InfrastructureError, UnavailableError
from asyncrl.services.env.workers.messages import action_to_map
from asyncrl.services.env.workers.process import WorkerProcess
from asyncrl.startup import KEY, StartDeadline
from asyncrl.together import to_their_ends
from asyncrl.types import Task

log = logging.getLogger("asyncrl.env")

START_TIMEOUT_S = 300.0
"""See `run.start_timeout_s`."""
HANG_S = 20.0
MARGIN_S = 5.0
"""Added to the deadline of a call, which the worker enforces itself."""
TICKS = 4
"""Pings in `hang_s`."""
RETIRE_S = 60.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0
STEADY_S = 30.0
"""A worker that lived this long resets the back-off."""
STOP_GRACE_S = 4.0


class NoWorkerReady(UnavailableError):
    """Every worker is starting or being replaced."""


class WorkerPool:
    """A `Runtime` of `processes` workers. A session goes to the worker with the fewest."""

    def __init__(
        self, processes: int, hang_s: float = HANG_S, start_timeout_s: float = START_TIMEOUT_S
    ) -> None:
        self.on_lost: OnLost = lambda sessions, why: None
        self.processes = processes
        self.hang_s = hang_s
        self.start_timeout_s = start_timeout_s
        self.replaced: Counter[str] = Counter()
        """Workers replaced, by reason: crash, hang, overrun, start."""
        self.workers: dict[int, WorkerProcess] = {}
        self.retired: set[WorkerProcess] = set()
        self._by_session: dict[str, WorkerProcess] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._drains: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start every worker and wait until all serve, or one where others had to be replaced.

        Raises `UnavailableError` when none does in time.
        """
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self.processes)]
        # The workers are descendants of this process: their progress counts as its own.
        start, deadline = time.monotonic(), StartDeadline(os.getpid(), self.start_timeout_s)
        while len(self.ready()) < (1 if self.replaced else self.processes):
            # Workers that die and are replaced would make progress forever.
            failing = self.replaced and time.monotonic() - start > self.start_timeout_s
            if failing or deadline.missed():
                if self.ready():
                    return
                await self.stop()
                raise UnavailableError(
                    f"no environment worker started within {KEY}={self.start_timeout_s:g} s"
                )
            await asyncio.sleep(0.02)

    def ready(self) -> list[WorkerProcess]:
        """Workers that take sessions."""
        return [w for w in self.workers.values() if w.ready.is_set() and not w.closed.is_set()]

    @property
    def overrun(self) -> int:
        """Calls that have outlived their deadline and still hold a thread of some worker."""
        return sum(worker.overrun for worker in (*self.workers.values(), *self.retired))

    async def open(self, session_id: str, task: Task, config: dict[str, Any]) -> Opened:
        """Open a session on the least busy worker. Raises `NoWorkerReady`, and as `LocalRuntime.open` does."""
        ready = self.ready()
        if not ready:
            raise NoWorkerReady("no environment worker is ready; one is being started", retry_after_s=1.0)
        # A silent one may hang: it gets sessions only if there is no other.
        worker = min(ready, key=lambda w: (w.silent_ticks > 1, len(w.sessions)))
        worker.sessions.add(session_id)
        self._by_session[session_id] = worker
        timeout_s = 2 * RESET_TIMEOUT_S + MARGIN_S
        try:
            found = await worker.request("open", session_id, [asdict(task), config], timeout_s)
        except BaseException:
            self._forget(session_id)
            raise
        return Opened(**found)

    async def step(self, session_id: str, action: Action, timeout_s: float) -> Step:
        """As `LocalRuntime.step`; `InfrastructureError` when the session's worker is lost."""
        worker = self._by_session.get(session_id)
        if worker is None:
            raise InfrastructureError(f"session {session_id} is lost with its worker")
        arguments = [action_to_map(action), timeout_s]
        return Step(**await worker.request("step", session_id, arguments, timeout_s + MARGIN_S))

    async def close(self, session_id: str) -> None:
        """End a session; nothing when its worker is gone."""
        worker = self._by_session.get(session_id)
        if worker is None:
            return
        try:
            await worker.request("close", session_id, None, CLOSE_TIMEOUT_S + MARGIN_S)
        finally:
            self._forget(session_id)

    async def stop(self) -> None:
        """End every worker: asked first, killed after `STOP_GRACE_S`."""
        for keeper in (*self._keepers, *self._drains):
            keeper.cancel()
        await asyncio.gather(*self._keepers, *self._drains, return_exceptions=True)
        workers = [*self.workers.values(), *self.retired]
        for worker in workers:
            worker.ask_to_stop()
        try:
            await to_their_ends(worker.end(STOP_GRACE_S) for worker in workers)
        finally:
            for worker in workers:
                worker.fail("the environment service has stopped")
            self.workers.clear()
            self.retired.clear()

    async def _keep(self, number: int) -> None:
        """Keep one worker running for as long as the pool runs."""
        pause_s = FIRST_PAUSE_S
        while True:
            worker = self.workers[number] = WorkerProcess(number, self.hang_s)
            reason = await self._watch(worker)
            self.replaced[reason] += 1
            if reason == "overrun":
                self._retire(worker)
                continue
            if time.monotonic() - worker.started > STEADY_S:
                pause_s = FIRST_PAUSE_S
            await self._dispose(worker, reason, f"; replacing it in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _watch(self, worker: WorkerProcess) -> str:
        """Return why the worker must be replaced, once it must."""
        try:
            await worker.start(self.start_timeout_s)
        except (AsyncRLError, OSError) as error:
            log.error("%s", error)
            return "start"
        tick_s, overrun_ticks = self.hang_s / TICKS, 0
        while True:
            worker.ping()
            try:
                async with asyncio.timeout(tick_s):
                    await worker.closed.wait()
                return "crash"
            except TimeoutError:
                pass
            # Ticks, not seconds: a pause of the machine or of this loop does not count as silence of the worker.
            if (hung := worker.hangs()) and worker.silent_ticks >= TICKS:
                worker.why_hung = hung
                return "hang"
            overrun_ticks = overrun_ticks + 1 if worker.overrun else 0
            if overrun_ticks > TICKS or (worker.unanswered and not worker.silent_ticks):
                return "overrun"

    async def _dispose(self, worker: WorkerProcess, reason: str, then: str) -> None:
        """Kill what is left of a worker and give up its sessions."""
        code = await worker.end()
        how = f"{worker.why_hung} and was killed" if reason == "hang" else _ended(code)
        why = f"{worker.name} {how}"
        log.warning("%s; %d session(s) lost%s", why, len(worker.sessions), then)
        lost = list(worker.sessions)
        self.on_lost(lost, why)
        worker.fail(why)
        for session_id in lost:
            self._forget(session_id)

    def _retire(self, worker: WorkerProcess) -> None:
        log.warning(
            "%s: a call holds it past its deadline; it takes no new sessions, %d continue",
            worker.name,
            len(worker.sessions),
        )
        self.retired.add(worker)
        drain = asyncio.create_task(self._drain(worker))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)

    async def _drain(self, worker: WorkerProcess) -> None:
        """Wait for a retired worker's sessions to end, at most `RETIRE_S`."""
        deadline = time.monotonic() + RETIRE_S
        while worker.sessions and time.monotonic() < deadline and not worker.closed.is_set():
            worker.ping()
            await asyncio.sleep(self.hang_s / TICKS)
            if worker.hangs() and worker.silent_ticks >= TICKS:
                break
        await self._dispose(worker, "overrun", "")
        self.retired.discard(worker)

    def _forget(self, session_id: str) -> None:
        worker = self._by_session.pop(session_id, None)
        if worker is not None:
            worker.sessions.discard(session_id)


def _ended(code: int | None) -> str:
    if code is None:
        return "could not be started"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
