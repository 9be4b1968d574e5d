"""A host on another machine: a node (`asyncrl serve node`) starts the processes and reports what they do.

What it reports is written into the run folder as if the processes ran here: their output, their addresses, and the
files that trainers touch. So everything that watches a run reads files of this machine, whatever the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from asyncrl.endpoint import announce
from asyncrl.errors import AsyncRLError, UnavailableError
from asyncrl.extensions.machines.client import SHORT_S, NodeClient
from asyncrl.extensions.machines.messages import MAX_LOG_BYTES
from asyncrl.extensions.machines.registry import Registry
from asyncrl.gpus import VARIABLE as VISIBLE
from asyncrl.hosts.host import Start
from asyncrl.process_start import Process
from asyncrl.run.folder import POLICIES, folder_of
from asyncrl.startup import Meter, Used
from asyncrl.types import MAIN_POLICY

T = TypeVar("T")

REPORT_EVERY_S = 0.25
REPORT_S = 5.0
CONNECT_S = 2.0
LOST_S = 12.0
"""A node that has not answered for this long is lost, and its processes with it, unless its machine still takes
connections: a process that is suspended or gets no processor returns."""
POLL_S = 0.05
MEASURE_S = 30.0
"""How long a node measures a process after it was last asked for."""
_OWN = ("--folder", "--model", "--weights-dir", "--ready-file", "--port", "--beside")
"""Options whose values a node chooses itself, or that belong to the machine of the run folder."""


class LinkThread:
    """An event loop in a thread of its own, for the calls to all nodes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nodes", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine there and return its result. Raises what it raises, and `UnavailableError` if it is late."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise UnavailableError(f"a node did not answer within {timeout_s:g} s") from error

    def begin(self, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
        """Run a coroutine there without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


@dataclass(slots=True)
class NodeProcess:
    """Implements `Process` for one on a node."""

    host: NodeHost
    name: str
    start: int
    log: Path
    ready_file: Path | None
    pid: int = -1
    """No process of this machine."""
    returncode: int | None = None
    known_bytes: int = 0
    """How much of its log is here."""
    used: Used = field(default_factory=Used)
    """What the node reported last."""
    measured_until: float = 0.0
    """Until when the node is asked to measure it, in monotonic seconds: it costs a look at every process there."""

    def poll(self) -> int | None:
        if self.returncode is None and self.host.lost():
            self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.name, timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            self.host.end(self, "kill" if sig == signal.SIGKILL else "terminate")

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class NodeHost:
    """Implements `Host` by a node that has registered. folder: the run's. token: good for nodes."""

    bind_options: Sequence[str] = ()

    num_machines = 1

    def __init__(
        self,
        name: str,
        registry: Registry,
        link: LinkThread,
        token: str,
        folder: Path,
        silence_s: float = LOST_S,
    ) -> None:
        """silence_s: how long a node may be silent whose machine is there."""
        self.name, self.folder, self.silence_s = name, folder, max(silence_s, LOST_S)
        self._registry, self._link, self._token = registry, link, token
        self._node = registry.latest(name)
        self._client = NodeClient(self._node.url, token)
        self._processes: dict[str, NodeProcess] = {}
        self._touched: dict[Path, int] = {}
        self._heard = time.monotonic()
        self._error, self._there = "", False
        """Why the last report failed, and whether the machine took a connection since."""
        self._following = link.begin(self._follow())

    @property
    def url(self) -> str:
        """Where the node was last."""
        return self._node.url

    @property
    def address(self) -> str:
        return urlsplit(self.url).hostname or ""

    def free_port(self) -> int:
        return self._link.call(self._client.free_port(), SHORT_S)

    def start(self, start: Start) -> Process:
        role, arguments, port = _arguments(start.command)
        visible = start.env.get(VISIBLE)
        message = {
            "name": start.name,
            "role": role,
            "policy": _policy(start.command, self.folder),
            "arguments": arguments,
            "gpus": None if visible is None else [int(number) for number in visible.split(",") if number],
            "port": port,
            "nice": start.nice,
        }
        number = self._link.call(self._client.start(message), SHORT_S)
        process = NodeProcess(self, start.name, number, start.log, start.ready_file)
        self._processes[start.name] = process
        return process

    def note_descendants(self, process: Process) -> None:
        """Do nothing: the node does, when it is told to terminate one."""

    def kill(self, process: Process, wait_s: float) -> None:
        process.kill()
        # By then a node that does not answer is lost, and the process with it.
        process.wait(wait_s + self._limit_s)

    def end(self, process: NodeProcess, how: str) -> None:
        """End a process. One whose node does not answer is lost, or will be soon."""
        with contextlib.suppress(UnavailableError):
            self._link.call(self._client.end(process.name, how, SHORT_S), SHORT_S)

    def ended_on(self, process: Process) -> str:
        return ""

    def meter(self, process: Process) -> Meter:
        assert isinstance(process, NodeProcess)
        process.measured_until = time.monotonic() + MEASURE_S
        return process.used

    def lost(self) -> bool:
        """True when the node has not answered for too long."""
        return time.monotonic() - self._heard > self._limit_s

    @property
    def _limit_s(self) -> float:
        return self.silence_s if self._there else LOST_S

    def serves_at(self, url: str) -> bool:
        return urlsplit(url).hostname == self.address

    def problem(self) -> str:
        if self.lost():
            why = f": {self._error}" if self._error else ""
            return f"node {self.name} at {self.url} has not answered for {self._limit_s:g} s{why}"
        if self._registry.run is not None and self._registry.latest(self.name).run != self._registry.run.run:
            return f"node {self.name} has returned and is fetching the run"
        return ""

    def unreachable(self, urls: Sequence[str]) -> dict[str, str]:
        """Return the addresses that the node cannot reach, with the reason. Raises `AsyncRLError`."""
        return self._link.call(self._client.reach(urls), 4 * SHORT_S)

    def close(self) -> None:
        """Tell the node that the run is over."""
        self._following.cancel()
        with contextlib.suppress(AsyncRLError):
            self._link.call(self._client.leave(), SHORT_S)
        self._link.call(self._client.close(), SHORT_S)

    async def _follow(self) -> None:
        """Have the node report until cancelled. A node that was started anew has lost its processes."""
        while True:
            latest = self._registry.latest(self.name)
            if latest.boot != self._node.boot or latest.url != self._node.url:
                await self._client.close()
                self._client = NodeClient(latest.url, self._token)
                for process in list(self._processes.values()):
                    if process.returncode is None:
                        process.returncode = -signal.SIGKILL
            self._node = latest
            # Copied: another thread adds to it.
            processes, now = list(self._processes.items()), time.monotonic()
            known = {f"{name}.{p.start}": p.known_bytes for name, p in processes}
            measured = [name for name, p in processes if now < p.measured_until]
            try:
                report = await self._client.report(known, measured, REPORT_S)
                if report["boot"] == self._node.boot:
                    self._take(report)
                    self._miss(processes, report)
                    self._heard, self._error, self._there = time.monotonic(), "", False
            except (AsyncRLError, OSError) as error:
                # Of the node, or of the run folder's disk.
                self._error = str(error)
                self._there = await _takes_connections(self.url)
            await asyncio.sleep(REPORT_EVERY_S)

    def _take(self, report: dict[str, Any]) -> None:
        """Write what a node reports into the run folder."""
        for name, state in report["processes"].items():
            process = self._processes.get(name)
            if process is None or process.start != state["start"] or process.returncode is not None:
                continue
            if state["log"]:
                with open(process.log, "ab") as file:
                    file.write(state["log"])
                process.known_bytes += len(state["log"])
            process.used.cpu, process.used.data = state["cpu_s"], state["data_bytes"]
            if process.ready_file is not None and state["url"] and not process.ready_file.exists():
                announce(process.ready_file, state["url"], process.pid)
            if len(state["log"]) < MAX_LOG_BYTES:
                # Before that, what its log says last is still to come.
                process.returncode = state["code"]
        for policy, files in report["touched"].items():
            endpoints = folder_of(self.folder, policy) / "endpoints"
            for name, at_ns in files.items():
                path = endpoints / name
                if self._touched.get(path) != at_ns:
                    self._touched[path] = at_ns
                    path.touch()
                    os.utime(path)

    def _miss(self, asked: Sequence[tuple[str, NodeProcess]], report: dict[str, Any]) -> None:
        """Have processes as ended that the node had been asked about and knows nothing of: it has let go of them."""
        for name, process in asked:
            state = report["processes"].get(name)
            if process.returncode is None and (state is None or state["start"] != process.start):
                process.returncode = -signal.SIGKILL


async def _takes_connections(url: str) -> bool:
    """True where the machine of an address is up and something listens there, suspended or slow as it may be."""
    parts = urlsplit(url)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.close()
        return True
    return False


def _policy(command: Sequence[str], run: Path) -> str:
    """Return the policy whose folder a command names."""
    folder = Path(command[command.index("--folder") + 1]) if "--folder" in command else run
    return folder.name if folder.parent == run / POLICIES else MAIN_POLICY


def _arguments(command: Sequence[str]) -> tuple[str, dict[str, list[str]], int]:
    """Return role, options with their values, and port of `python -m asyncrl serve ROLE OPTION VALUE...`."""
    role, words = command[4], command[5:]
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            option = word
            found.setdefault(option, [])
        else:
            found[option].append(word)
    port = int((found.get("--port") or ["0"])[0])
    # "@FILE" is for the machine of the run folder.
    kept = {
        option: values
        for option, values in found.items()
        if option not in _OWN and not any(value.startswith("@") for value in values)
    }
    return role, kept, port
