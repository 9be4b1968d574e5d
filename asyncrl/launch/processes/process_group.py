"""The processes of a run: one log file each, addresses announced, deaths noticed, nothing left behind.

Where one runs is its host's business (`asyncrl.hosts`); its log and its address are files of the run folder either way.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.credentials import VARIABLE, role_token, run_credentials
from asyncrl.disk import cause_of
from asyncrl.endpoint import announced_url
from asyncrl.errors import DeadlineError, UnavailableError
from asyncrl.gpus import on_cpu
from asyncrl.hosts.host import Host, Start
from asyncrl.hosts.local import LocalHost
from asyncrl.launch.processes.death import last_error
from asyncrl.process_start import Process
from asyncrl.startup import StartDeadline

Placed = tuple[Host, Mapping[str, str]]
"""Where a process is started, and the variables that show it its GPUs there."""
GENERATION_NICE = 10
STOP_GRACE_S = 15.0
KILL_WAIT_S = 30.0
LOG_BYTES = 2**16
"""How much of a log's end is read."""


def generation_nice() -> int:
    """Return the niceness of generation. On CPUs it shares the cores with the trainer, which has priority.

    When the trainer has a batch, the run waits for the trainer. An engine that is slowed down meanwhile decodes more
    requests at once, each at a lower cost.
    """
    return GENERATION_NICE if on_cpu() else 0


@dataclass(slots=True)
class ManagedProcess:
    """A started process of a role."""

    name: str
    popen: Process
    log: Path
    ready_file: Path | None = None
    url: str = ""
    earlier_urls: list[str] = field(default_factory=list)
    """Where it was before, on other machines."""
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    host: Host = field(default_factory=LocalHost)
    """Where it starts."""
    log_start: int = 0
    """Where in the log the output since its latest start begins, in bytes."""
    started_on: Host | None = None
    """Where it was started last, once it is to start elsewhere."""

    def alive(self) -> bool:
        return self.popen.poll() is None

    def announced(self) -> bool:
        """True once it has announced its address, which is `url` then."""
        url = announced_url(self.ready_file) if self.ready_file is not None else ""
        if url and self.url and url != self.url:
            self.earlier_urls.append(self.url)
        self.url = url or self.url
        return bool(url)

    def start_deadline(self, timeout_s: float) -> StartDeadline:
        """Return the deadline of its latest start."""
        return StartDeadline(self.running_on.meter(self.popen), timeout_s, self.log)

    def go_to(self, host: Host, env: Mapping[str, str]) -> None:
        """Start on another host from now on, with further variables. What runs still does where it was started."""
        self.started_on = self.running_on
        self.host, self.env = host, {**self.env, **env}

    @property
    def running_on(self) -> Host:
        """The host of `popen`."""
        return self.started_on or self.host

    def ending(self) -> str:
        """Return how it ended."""
        if problem := self.host.problem():
            return f"was lost: {problem}"
        code = self.popen.poll()
        machine = self.running_on.ended_on(self.popen)
        where = f" on {machine}" if machine else ""
        return (
            f"was killed by signal {-code}{where}"
            if code is not None and code < 0
            else f"ended with exit code {code}{where}"
        )

    def reason(self) -> str:
        """Return what it ended with, from its log or its exit code; "" where it was killed or neither says."""
        code = self.popen.poll()
        return cause_of(code, last_error(self._output())) if code is not None and code > 0 else ""

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log, since its latest start only."""
        return "\n".join(f"    {line}" for line in self._output().splitlines()[-lines:])

    def _output(self) -> str:
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start, size - LOG_BYTES))
            return file.read().decode(errors="replace")
        return ""


class ProcessGroup:
    """The processes of one run, in start order. They are stopped in reverse order."""

    def __init__(
        self,
        folder: Path,
        host: Host | None = None,
        hosts: Mapping[str, Host] | None = None,
        elsewhere: Callable[[str], Placed | None] = lambda name: None,
        room: Callable[[str], Placed | None] | None = None,
        leave: Callable[[str], None] = lambda name: None,
    ) -> None:
        """host: where processes run, but for those that `hosts` names; this machine by default. elsewhere: returns
        where a process can go whose host was lost, None where nowhere has room. room: the same for one that is started
        while the run goes on; without it that is `host`. leave: told the name of one that has left the run for good."""
        self.host = host or LocalHost()
        self.hosts = hosts or {}
        self.elsewhere = elsewhere
        self.room = room
        self.leave = leave
        self.logs = folder / "logs"
        self.ready = folder / "endpoints"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.credentials = run_credentials(folder)
        """The run's; each process gets credentials of its own."""
        self.processes: list[ManagedProcess] = []
        for path in (self.logs, self.ready):
            path.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: dict[str, str] | None = None,
        ready: bool = True,
        nice: int = 0,
        host: Host | None = None,
    ) -> ManagedProcess:
        """Start `python -m asyncrl ARGV`; with `ready` it is told where to announce its address.

        nice: its niceness, added to that of this process. host: where, if not on that of this name.
        """
        host = host or self.hosts.get(name, self.host)
        command = [sys.executable, "-m", "asyncrl", *argv]
        ready_file = self.ready / f"{name}.json" if ready else None
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
            command += ["--ready-file", str(ready_file)]
        log = self.logs / f"{name}.log"
        env = {**(env or {}), VARIABLE: role_token(self.credentials, argv)}
        log_start = _size(log)
        popen = host.start(Start(name, _arguments(command, host, ready_file), log, ready_file, env, nice))
        process = ManagedProcess(name, popen, log, ready_file, "", [], command, env, nice, host, log_start)
        self.processes.append(process)
        return process

    def move(self, process: ManagedProcess) -> bool:
        """Have a process whose host was lost start elsewhere from now on; False where nowhere has room."""
        found = self.elsewhere(process.name)
        if found is None:
            return False
        process.go_to(*found)
        return True

    def restart(self, process: ManagedProcess) -> None:
        """Start a dead process again, at its address if it is still on the same machine.

        Call from the main thread: a process dies with the thread that started it.
        """
        self.kill(process)
        if process.ready_file is not None:
            process.ready_file.unlink(missing_ok=True)
        same = process.url and process.host.serves_at(process.url)
        port = ["--port", process.url.rpartition(":")[2]] if same else []
        process.log_start = _size(process.log)
        command = [*_arguments(process.command, process.host, process.ready_file), *port]
        start = Start(process.name, command, process.log, process.ready_file, process.env, process.nice)
        process.popen = process.host.start(start)
        process.started_on = None

    def kill(self, process: ManagedProcess) -> None:
        """Kill a process and everything it started."""
        process.running_on.kill(process.popen, KILL_WAIT_S)

    def forget(self, process: ManagedProcess) -> None:
        """Let go of a process that has left the run, and end what is left of it."""
        self.kill(process)
        self.processes = [one for one in self.processes if one is not process]
        self.leave(process.name)

    def wait_ready(self, process: ManagedProcess, timeout_s: float) -> str:
        """Return the process's address once it serves.

        timeout_s: see `StartDeadline`. Raises `UnavailableError` when a process died, `DeadlineError`.
        """
        assert process.ready_file is not None
        deadline = process.start_deadline(timeout_s)
        while not (missed := deadline.missed()):
            self.check()
            if process.announced():
                return process.url
            time.sleep(0.05)
        raise DeadlineError(f"{process.name} {missed}; see {process.log}\n{process.tail()}")

    def check(self) -> None:
        """Raise `UnavailableError` naming the first process that has died."""
        for process in self.processes:
            code = process.popen.poll()
            if code is not None and code != 0:
                raise UnavailableError(describe_end(process, process.ending()))

    def stop(self, processes: Sequence[ManagedProcess] | None = None, grace_s: float | None = None) -> None:
        """End processes in reverse start order: SIGTERM, a grace period, then SIGKILL to all they started."""
        chosen = list(self.processes if processes is None else processes)
        for process in chosen:
            process.running_on.note_descendants(process.popen)
        for process in reversed(chosen):
            if process.alive():
                process.popen.terminate()
        deadline = time.monotonic() + (STOP_GRACE_S if grace_s is None else grace_s)
        for process in reversed(chosen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.1, deadline - time.monotonic()))
            with contextlib.suppress(subprocess.TimeoutExpired):
                # It is killed already. A busy machine may take a while to end it, and the others must be stopped, too.
                self.kill(process)
            self.processes = [one for one in self.processes if one is not process]


def with_reason(process: ManagedProcess, why: str) -> str:
    """Return how a process ended, with the error that it ended with if its log has one."""
    reason = process.reason()
    return f"{why}: {reason}" if reason else why


def describe_end(process: ManagedProcess, why: str, advice: str = "") -> str:
    """Return how a process ended for good: the error it ended with, where its log is, and the end of the log."""
    text = "; ".join(part for part in (with_reason(process, why), advice) if part)
    return f"{process.name} {text}; see {process.log}\n{process.tail()}"


def _arguments(command: Sequence[str], host: Host, ready_file: Path | None) -> list[str]:
    """Return a command with where to listen, for one that serves."""
    return [*command, *(host.bind_options if ready_file is not None else ())]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
