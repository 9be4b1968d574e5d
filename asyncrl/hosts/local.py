"""The machine this process runs on."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from asyncrl.hosts.host import Start
from asyncrl.process_start import Process, start_process
from asyncrl.startup import Meter, ProcessMeter


class LocalHost:
    """Implements `Host`: each process has a session of its own and asks the kernel to be killed with its parent, so
    neither Ctrl-C, a crash nor SIGKILL of the launcher leaves an orphan.

    bind_options: as in `Host`; empty where nothing is to be reached from other machines. address: under which these
    reach it.
    """

    num_machines = 1

    def __init__(self, bind_options: Sequence[str] = (), address: str = "") -> None:
        self.bind_options, self.address = bind_options, address
        self._descendants: dict[int, list[psutil.Process]] = {}

    def free_port(self) -> int:
        return free_port()

    def start(self, start: Start) -> Process:
        """Call from the main thread: a process dies with the thread that started it."""
        return spawn(start.command, start.log, start.env, start.nice)

    def note_descendants(self, process: Process) -> None:
        self._descendants[process.pid] = _descendants(process)

    def kill(self, process: Process, wait_s: float) -> None:
        descendants = [*self._descendants.pop(process.pid, ()), *_descendants(process)]
        # Forked a moment ago, it may have no session of its own yet.
        process.kill()
        _kill_session(process)
        _kill_all(descendants)
        process.wait(wait_s)

    def ended_on(self, process: Process) -> str:
        return ""

    def meter(self, process: Process) -> Meter:
        return ProcessMeter(process.pid)

    def serves_at(self, url: str) -> bool:
        return not self.address or urlsplit(url).hostname == self.address

    def problem(self) -> str:
        return ""


def free_port() -> int:
    """Return a port of this machine that nothing listens on, at any of its addresses."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str], nice: int = 0) -> Process:
    """Start a command in a session of its own, its output appended to `log`; it dies with this thread."""
    with open(log, "ab") as sink:
        return start_process(command, {**os.environ, **env}, sink.fileno(), nice)


def _kill_session(process: Process) -> None:
    """Kill the operating system's process group of a process, but for Python's resource trackers: these end by
    themselves once they have removed the semaphores and shared memory of the others."""
    for found in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getpgid(found.pid) == process.pid and not _is_tracker(found):
                found.kill()


def _is_tracker(process: psutil.Process) -> bool:
    return any("multiprocessing.resource_tracker" in part for part in process.cmdline())


def _descendants(process: Process) -> list[psutil.Process]:
    """Return the descendants of a process, which may have left its session."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def _kill_all(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if not _is_tracker(process):
                process.kill()
