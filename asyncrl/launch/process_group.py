"""Child processes of a run: one log file each, a health signal, death noticed, nothing left behind.

A child runs in its own process group and asks the kernel to be killed with its parent, so neither Ctrl-C, a crash
nor SIGKILL of the launcher leaves an orphan.
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
from asyncrl.launch.death import last_error
from asyncrl.process_hooks import die_with_parent, step_back
from asyncrl.services.engine.service import on_cpu

BEHIND_TRAINER = 10
STOP_GRACE_S = 15.0
KILL_WAIT_S = 30.0
START_TIMEOUT_S = 300.0
"""How long a service may take to start, which on a busy machine is mostly imports; one that dies is noticed at once."""
LOG_BYTES = 2**16
"""How much of a log's end is looked at."""


def behind_trainer() -> int:
    """Return how nice generation is: on CPUs, whose cores it shares with the trainer, it goes behind.

    A trainer that has a batch is what the run waits for; an engine that waits meanwhile decodes more requests at once,
    each for less.
    """
    return BEHIND_TRAINER if on_cpu() else 0


@dataclass(slots=True)
class Child:
    """A running role."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready_file: Path | None = None
    url: str = ""
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0
    log_start: int = 0
    """Where in the log its newest life begins, in bytes."""

    def alive(self) -> bool:
        return self.process.poll() is None

    def announced(self) -> bool:
        """True once it has said where it serves; `url` is known then."""
        url = announced_url(self.ready_file) if self.ready_file is not None else ""
        self.url = url or self.url
        return bool(url)

    def ending(self) -> str:
        """Say how it died."""
        code = self.process.poll()
        return (
            f"was killed by signal {-code}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )

    def reason(self) -> str:
        """Return the error it ended with, as its log says it; "" where it was killed or its log says nothing."""
        code = self.process.poll()
        return last_error(self._life()) if code is not None and code > 0 else ""

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log, of its newest life only."""
        return "\n".join(f"    {line}" for line in self._life().splitlines()[-lines:])

    def _life(self) -> str:
        with contextlib.suppress(OSError), open(self.log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_start, size - LOG_BYTES))
            return file.read().decode(errors="replace")
        return ""


class Family:
    """The children of one run, in start order; stopped in reverse."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "logs"
        self.ready = folder / "endpoints"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.credentials = run_credentials(folder)
        """The run's; each child is given its own."""
        self.children: list[Child] = []
        for path in (self.logs, self.ready):
            path.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: dict[str, str] | None = None,
        ready: bool = True,
        nice: int = 0,
    ) -> Child:
        """Start `python -m asyncrl ARGV`; with `ready` it is told where to report its address.

        nice: by how much it lets others have the CPU first.
        """
        command = [sys.executable, "-m", "asyncrl", *argv]
        ready_file = self.ready / f"{name}.json" if ready else None
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
            command += ["--ready-file", str(ready_file)]
        log = self.logs / f"{name}.log"
        env = {**(env or {}), VARIABLE: role_token(self.credentials, argv)}
        log_start = _size(log)
        process = spawn(command, log, env, nice)
        child = Child(name, process, log, ready_file, "", command, env, nice, log_start)
        self.children.append(child)
        return child

    def restart(self, child: Child) -> None:
        """Start a dead child again, at the address it had. Call from the main thread, whose death ends children."""
        self.kill(child)
        if child.ready_file is not None:
            child.ready_file.unlink(missing_ok=True)
        port = ["--port", child.url.rpartition(":")[2]] if child.url else []
        child.log_start = _size(child.log)
        child.process = spawn([*child.command, *port], child.log, child.env, child.nice)

    def kill(self, child: Child) -> None:
        """End a child and all it started, at once."""
        members = _members(child)
        _kill_group(child)
        _kill_members(members)
        child.process.wait(KILL_WAIT_S)

    def wait_ready(self, child: Child, timeout_s: float) -> str:
        """Return the child's address once it serves. Raises `UnavailableError` or `DeadlineError`."""
        assert child.ready_file is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            if child.announced():
                return child.url
            time.sleep(0.05)
        raise DeadlineError(
            f"{child.name} did not start within {timeout_s:g} s; see {child.log}\n{child.tail()}"
        )

    def check(self) -> None:
        """Raise `UnavailableError` naming the first child that has died."""
        for child in self.children:
            code = child.process.poll()
            if code is not None and code != 0:
                raise UnavailableError(obituary(child, child.ending()))

    def stop(self, children: Sequence[Child] | None = None, grace_s: float | None = None) -> None:
        """End children in reverse start order: SIGTERM, a grace, then SIGKILL to the whole group."""
        chosen = list(self.children if children is None else children)
        members = {child.name: _members(child) for child in chosen}
        for child in reversed(chosen):
            if child.alive():
                child.process.terminate()
        deadline = time.monotonic() + (STOP_GRACE_S if grace_s is None else grace_s)
        for child in reversed(chosen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, deadline - time.monotonic()))
            _kill_group(child)
            _kill_members(members[child.name])
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Killed already; a busy machine may take a while to end it, and the others are to be stopped too.
                child.process.wait(KILL_WAIT_S)
            self.children = [c for c in self.children if c is not child]


def obituary(child: Child, why: str, advice: str = "") -> str:
    """Say how a child ended for good: the error it ended with, where its log is, and the end of that."""
    reason = child.reason()
    told = "; ".join(part for part in (f"{why}: {reason}" if reason else why, advice) if part)
    return f"{child.name} {told}; see {child.log}\n{child.tail()}"


def role_token(credentials: Credentials, argv: Sequence[str]) -> str:
    """Return what `asyncrl ARGV` needs as its credentials, and no more; "" for what makes its own."""
    if argv[0] != "serve":
        return ""
    role = argv[1]
    if role == "buffer":
        # It gives credentials to those who join.
        return credentials.text
    name = argv[argv.index("--name") + 1] if "--name" in argv else role
    return credentials.issue("worker" if role == "rollout" else role, name if role == "rollout" else "").text


def spawn(
    command: Sequence[str], log: Path, env: Mapping[str, str], nice: int = 0
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, its output appended to `log`; it dies with this thread."""

    def before() -> None:
        die_with_parent()
        if nice:
            step_back(nice)

    with open(log, "ab") as sink:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,
            preexec_fn=before,
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _kill_group(child: Child) -> None:
    """Kill the child's process group but for Python's resource trackers, which end by themselves once they have
    removed the semaphores and shared memory of the others."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == child.process.pid and not _is_tracker(process):
                process.kill()


def _is_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in part for part in process.cmdline())


def _members(child: Child) -> list[psutil.Process]:
    """Return the descendants of a child, which may have left its process group."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(child.process.pid).children(recursive=True)
    return []


def _kill_members(members: Sequence[psutil.Process]) -> None:
    for member in members:
        with contextlib.suppress(psutil.Error):
            if not _is_tracker(member):
                member.kill()
