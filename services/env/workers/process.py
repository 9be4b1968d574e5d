"""One worker process as the service sees it: requests with deadlines, detection of silence, and a complete end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from asyncrl.errors import DeadlineError, InfrastructureError
from asyncrl.liveness import Liveness
from asyncrl.process_start import without_folder
from asyncrl.services.env.workers.channel import Channel
from asyncrl.services.env.workers.messages import error_from_map
from asyncrl.startup import ProcessMeter, StartDeadline

WITHHELD = frozenset({"ASYNCRL_TOKEN"})
"""Environment variables of the service that environments must not see."""
EXIT_POLL_S = 0.01
BUSY_FACTOR = 6
"""A worker that computes may be silent for so many times as long as one that does not: a call may hold Python's lock
for all others, as when it reads a large file."""
START_POLL_S = 0.2


class WorkerProcess:
    """A started worker. The pool owns it: it watches `closed`, and calls `fail` once it gives the worker up.

    Spawned in a session of its own, so that whatever it starts dies with it and Ctrl-C reaches the service alone.
    """

    def __init__(self, number: int, hang_s: float) -> None:
        """hang_s: how long it may neither answer nor make progress."""
        self.number = number
        self._liveness = Liveness(hang_s, busy_limit_s=BUSY_FACTOR * hang_s)
        self._meter: ProcessMeter | None = None
        self.started = time.monotonic()
        self.sessions: set[str] = set()
        self.ready = asyncio.Event()
        self.closed = asyncio.Event()
        self.silent_ticks = 0
        """Pings since the last message."""
        self.overrun = 0
        """Calls that hold one of its threads past their deadline."""
        self.why_hung = ""
        self.unanswered = 0
        """Requests without an answer although it answers pings."""
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._failure: str = ""
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def name(self) -> str:
        return f"environment worker {self.number} (pid {self.pid})"

    async def start(self, timeout_s: float) -> None:
        """Spawn it and wait until it serves. `timeout_s` is without progress, see `StartDeadline`.

        Raises `DeadlineError`, or `InfrastructureError` when it dies first.
        """
        self._channel = await Channel.connect(self._spawn(), self._receive, self._on_closed)
        # Environments named by import path must be found there as they are here.
        self._channel.send([0, "path", "", [entry for entry in sys.path if entry]])
        events = [asyncio.ensure_future(event.wait()) for event in (self.ready, self.closed)]
        deadline, missed = StartDeadline(self.pid, timeout_s), ""
        try:
            while not missed and not any(event.done() for event in events):
                await asyncio.wait(events, timeout=START_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                missed = deadline.missed()
        finally:
            for event in events:
                event.cancel()
        if self.closed.is_set():
            raise InfrastructureError(f"{self.name} died while starting")
        if not self.ready.is_set():
            raise DeadlineError(f"{self.name} {missed}")

    def _spawn(self) -> socket.socket:
        """Start the process; return this end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            fd = theirs.fileno()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "asyncrl.services.env.workers", str(fd), str(os.getpid())],
                    pass_fds=(fd,),
                    stdin=subprocess.DEVNULL,
                    env=without_folder(
                        {name: value for name, value in os.environ.items() if name not in WITHHELD}
                    ),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._meter = ProcessMeter(self._process.pid)
        ours.setblocking(False)
        return ours

    async def request(self, operation: str, session: str, arguments: Any, timeout_s: float) -> Any:
        """Ask and wait for the answer.

        Raises what the worker names, `InfrastructureError` when it dies, and `DeadlineError` when it stays silent.
        """
        if self._failure:
            raise InfrastructureError(self._failure)
        assert self._channel is not None
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._channel.send([number, operation, session, arguments])
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            self.unanswered += 1
            raise DeadlineError(f"{self.name} did not answer {operation} within {timeout_s:g} s") from error
        finally:
            self._waiting.pop(number, None)

    def ping(self) -> None:
        """Send a ping; `silent_ticks` counts those without an answer."""
        self.silent_ticks += 1
        if self._channel is not None:
            self._channel.send([0, "ping", "", None])

    def hangs(self) -> str:
        """Return why it is hung, "" while it may live; see `asyncrl.liveness`. To be called at each ping."""
        if self.silent_ticks < 1 or self._meter is None:
            return ""
        return self._liveness.hung(time.monotonic(), self._meter)

    def fail(self, why: str) -> None:
        """Answer pending and later requests with `InfrastructureError(why)`."""
        self._failure = why
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(InfrastructureError(why))

    def ask_to_stop(self) -> None:
        """Let it close its sessions and exit."""
        if self._channel is not None and not self.closed.is_set():
            self._channel.send([0, "stop", "", None])

    async def end(self, grace_s: float = 0.0) -> int | None:
        """Wait `grace_s` for it to exit, then kill it and all it started; return its exit code (None: no start)."""
        process = self._process
        if process is None:
            return None
        await self._exited(process, grace_s)
        # Its children are in its process group; the group outlives its leader.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await self._exited(process, 10.0)
        if self._channel is not None:
            self._channel.close()
        return process.returncode

    @staticmethod
    async def _exited(process: subprocess.Popen[bytes], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(EXIT_POLL_S)

    def _receive(self, message: Any) -> None:
        self.silent_ticks = 0
        self._liveness.answer(time.monotonic())
        number, result, *error = message
        if number == 0:
            self.overrun = int(result)
            self.ready.set()
            return
        answer = self._waiting.get(number)
        if answer is None or answer.done():
            return
        if error:
            answer.set_exception(error_from_map(error[0]))
        else:
            answer.set_result(result)

    def _on_closed(self) -> None:
        self.closed.set()
