"""The processes of a run: one log file each, addresses announced, deaths noticed, nothing left behind.

Each runs in a session of its own and asks the kernel to be killed with its parent, so neither Ctrl-C, a crash nor
SIGKILL of the launcher leaves an orphan.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from asyncrl.credentials import VARIABLE, Credentials, run_credentials
from asyncrl.endpoint import announced_url
from asyncrl.errors import DeadlineError, UnavailableError
from asyncrl.gpus import on_cpu
from asyncrl.launch.death import last_error
from asyncrl.process_start import Process, start_process
from asyncrl.startup import StartDeadline

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
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    log_start: int = 0
    """Where in the log the output since its latest start begins, in bytes."""

    def alive(self) -> bool:
        return self.popen.poll() is None

    def announced(self) -> bool:
        """True once it has announced its address, which is `url` then."""
        url = announced_url(self.ready_file) if self.ready_file is not None else ""
        self.url = url or self.url
        return bool(url)

    def start_deadline(self, timeout_s: float) -> StartDeadline:
        """Return the deadline of its latest start."""
        return StartDeadline(self.popen.pid, timeout_s, self.log)

    def ending(self) -> str:
        """Return how it ended."""
        code = self.popen.poll()
        return (
            f"was killed by signal {-code}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )

    def reason(self) -> str:
        """Return the error in its log that it ended with; "" where it was killed or its log has none."""
        code = self.popen.poll()
        return last_error(self._output()) if code is not None and code > 0 else ""

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

    def __init__(self, folder: Path) -> None:
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
    ) -> ManagedProcess:
        """Start `python -m asyncrl ARGV`; with `ready` it is told where to announce its address.

        nice: its niceness, added to that of this process.
        """
        command = [sys.executable, "-m", "asyncrl", *argv]
        ready_file = self.ready / f"{name}.json" if ready else None
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
            command += ["--ready-file", str(ready_file)]
        log = self.logs / f"{name}.log"
        env = {**(env or {}), VARIABLE: role_token(self.credentials, argv)}
        log_start = _size(log)
        popen = spawn(command, log, env, nice)
        process = ManagedProcess(name, popen, log, ready_file, "", command, env, nice, log_start)
        self.processes.append(process)
        return process

    def restart(self, process: ManagedProcess) -> None:
        """Start a dead process again at its address.

        Call from the main thread: a process dies with the thread that started it.
        """
        self.kill(process)
        if process.ready_file is not None:
            process.ready_file.unlink(missing_ok=True)
        port = ["--port", process.url.rpartition(":")[2]] if process.url else []
        process.log_start = _size(process.log)
        process.popen = spawn([*process.command, *port], process.log, process.env, process.nice)

    def kill(self, process: ManagedProcess) -> None:
        """Kill a process and everything it started."""
        descendants = _descendants(process)
        _kill_session(process)
        _kill_all(descendants)
        process.popen.wait(KILL_WAIT_S)

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
        descendants = {process.name: _descendants(process) for process in chosen}
        for process in reversed(chosen):
            if process.alive():
                process.popen.terminate()
        deadline = time.monotonic() + (STOP_GRACE_S if grace_s is None else grace_s)
        for process in reversed(chosen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.1, deadline - time.monotonic()))
            _kill_session(process)
            _kill_all(descendants[process.name])
            with contextlib.suppress(subprocess.TimeoutExpired):
                # It is killed already. A busy machine may take a while to end it, and the others must be stopped, too.
                process.popen.wait(KILL_WAIT_S)
            self.processes = [one for one in self.processes if one is not process]


def describe_end(process: ManagedProcess, why: str, advice: str = "") -> str:
    """Return how a process ended for good: the error it ended with, where its log is, and the end of the log."""
    reason = process.reason()
    text = "; ".join(part for part in (f"{why}: {reason}" if reason else why, advice) if part)
    return f"{process.name} {text}; see {process.log}\n{process.tail()}"


def role_token(credentials: Credentials, argv: Sequence[str]) -> str:
    """Return the credentials that `asyncrl ARGV` needs, and no more; "" for commands that make their own."""
    if argv[0] != "serve":
        return ""
    role = argv[1]
    if role == "buffer":
        # It issues credentials to processes that join.
        return credentials.text
    name = argv[argv.index("--name") + 1] if "--name" in argv else role
    return credentials.issue("worker" if role == "rollout" else role, name if role == "rollout" else "").text


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str], nice: int = 0) -> Process:
    """Start a command in a session of its own, its output appended to `log`; it dies with this thread."""
    with open(log, "ab") as sink:
        return start_process(command, {**os.environ, **env}, sink.fileno(), nice)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _kill_session(process: ManagedProcess) -> None:
    """Kill the operating system's process group of a process, but for Python's resource trackers: these end by
    themselves once they have removed the semaphores and shared memory of the others."""
    for found in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(found.pid) == process.popen.pid and not _is_tracker(found):
                found.kill()


def _is_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in part for part in process.cmdline())


def _descendants(process: ManagedProcess) -> list[psutil.Process]:
    """Return the descendants of a process, which may have left its session."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.popen.pid).children(recursive=True)
    return []


def _kill_all(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if not _is_tracker(process):
                process.kill()
