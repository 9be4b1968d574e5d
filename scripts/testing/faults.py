"""The faults of `chaos.py`: proxies that can be cut and slowed, and a thread that kills and stops processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psutil

from asyncrl.credentials import authorization
from asyncrl.env.config_check import env_services
from asyncrl.http_clients import open_url
from asyncrl.launch.roles.roles import Roles
from asyncrl.run.metrics import read_metrics

NETWORK_SHARE = 0.25
"""Network faults per kill."""
STOP_SHARE = 0.25
"""Share of the kills that are SIGSTOP."""
DOUBLE_SHARE = 0.2
"""Share of the faults that follow the previous one at once."""
HURRIED_STEPS = 2
"""With at most this many steps left per remaining kill, a kill follows its step at once."""
CHUNK = 65536
REPLACE_S = 90.0
"""Deadline for an environment worker to be replaced."""


@dataclass(slots=True)
class Fault:
    """One fault. Times in seconds since the first step."""

    at_s: float
    role: str
    kind: str
    detail: str = ""


@dataclass(slots=True)
class _Link:
    """One proxied direction of calls."""

    name: str
    port: int
    target: tuple[str, int]
    cut_until: float = 0.0
    delay_s: float = 0.0
    slow_until: float = 0.0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)


class Network:
    """Proxies on their own event loop, one for each pair of roles."""

    def __init__(self) -> None:
        self.links: dict[tuple[str, str], _Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def route(self, caller: str, callee: str, url: str) -> str:
        """Return the address of the proxy through which `caller` reaches `callee` at `url`."""
        if (caller, callee) not in self.links:
            parts = urlsplit(url)
            assert parts.hostname is not None and parts.port is not None
            link = _Link(f"{caller} to {callee}", 0, (parts.hostname, parts.port))
            asyncio.run_coroutine_threadsafe(self._open(link), self._loop).result(10)
            self.links[caller, callee] = link
        return f"http://127.0.0.1:{self.links[caller, callee].port}"

    def cut(self, link: _Link, seconds: float) -> None:
        """Break all connections and accept no new ones for a while."""
        link.cut_until = time.monotonic() + seconds
        self._loop.call_soon_threadsafe(self._abort, link)

    def _abort(self, link: _Link) -> None:
        for writer in list(link.writers):
            writer.transport.abort()

    def slow(self, link: _Link, delay_s: float, seconds: float) -> None:
        """Delay every piece that passes."""
        link.delay_s, link.slow_until = delay_s, time.monotonic() + seconds

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    async def _open(self, link: _Link) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(link, reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        link.port = server.sockets[0].getsockname()[1]

    async def _serve(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < link.cut_until:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*link.target)
        except OSError:
            writer.transport.abort()
            return
        link.writers |= {writer, far_writer}
        ways = [self._pass(link, reader, far_writer), self._pass(link, far_reader, writer)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for one in (writer, far_writer):
            link.writers.discard(one)
            one.close()

    async def _pass(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(CHUNK):
                if time.monotonic() < link.slow_until:
                    await asyncio.sleep(link.delay_s)
                writer.write(piece)
                await writer.drain()


CHILDREN: dict[str, Callable[[Roles], list[Any]]] = {
    "buffer": lambda roles: [roles.main.buffer],
    "env": lambda roles: roles.envs,
    "env worker": lambda roles: roles.envs,
    "engine": lambda roles: roles.main.engines,
    "vllm": lambda roles: roles.main.engines,
    "rollout": lambda roles: roles.workers,
    "trainer": lambda roles: [roles.main.trainer],
    "trainer rank": lambda roles: [roles.main.trainer],
}
"""By kind of victim the processes of the launcher that are it, or have started it."""
INNER = ("vllm", "env worker", "trainer rank")
"""Victims that are descendants of a process the launcher has started."""


def victims(roles: Roles) -> list[str]:
    """Return the kinds of processes a run has. With several ranks, "trainer" is the process that starts them."""
    services = ["env"] if env_services(roles.config) else []
    found = ["buffer", *services, "engine", "vllm", "rollout", "trainer"]
    if roles.config.env.processes:
        found.append("env worker")
    if roles.config.train.ranks > 1:
        found.append("trainer rank")
    return found


class Monkey(threading.Thread):
    """Makes `kills` process faults and some network faults, each after a further step or two of the run, for at most
    `seconds`."""

    def __init__(
        self,
        roles: Roles,
        network: Network,
        kills: int,
        seed: int,
        seconds: float = float("inf"),
        only: Sequence[str] = (),
    ) -> None:
        super().__init__(name="monkey", daemon=True)
        self.roles, self.network, self.kills, self.seconds = roles, network, kills, seconds
        self.out_of_time = False
        self.random = random.Random(seed)
        self.faults: list[Fault] = []
        self.replaced_s: list[float] = []
        """How long environment workers were away; the launcher's record does not include them."""
        self._victims = list(only) or victims(roles)
        self._closed = threading.Event()
        self._deck: list[str] = []
        self._timers: list[threading.Timer] = []
        self._begun = 0.0

    def rest(self) -> None:
        """Make no more faults, and let stopped processes that nobody has killed continue."""
        self._closed.set()
        if self.is_alive():
            self.join(10)
        for timer in self._timers:
            timer.join(10)

    def run(self) -> None:
        self._begun = time.monotonic()
        seen, left = 0, self.kills
        while left and not self._closed.is_set():
            if self.random.random() >= DOUBLE_SHARE:
                seen = self._wait_beyond(seen)
                pause_s = self.random.uniform(0, 3)
                if self.roles.config.train.num_steps - seen > HURRIED_STEPS * left:
                    self._closed.wait(pause_s)
            self.out_of_time = time.monotonic() - self._begun > self.seconds
            if self._closed.is_set() or self.out_of_time:
                return
            if self.random.random() < NETWORK_SHARE:
                self._disturb_network()
            left -= self._strike()

    def _wait_beyond(self, step: int) -> int:
        """Wait for a step after `step`; return it."""
        while not self._closed.wait(0.1):
            newest = max((m["step"] for m in read_metrics(self.roles.folder)), default=0)
            if newest > step:
                return newest
        return step

    def _strike(self) -> int:
        """Kill or stop one process; return 1, or 0 if it did not exist."""
        if not self._deck:
            self._deck = list(self._victims)
            self.random.shuffle(self._deck)
        role = self._deck.pop()
        processes = self._processes(role)
        if not processes:
            self._deck.insert(0, role)
            self._closed.wait(0.2)
            return 0
        process = self.random.choice(processes)
        with contextlib.suppress(psutil.Error):
            if self.random.random() < STOP_SHARE:
                # Half of the stopped ones continue after a moment, the others stay until somebody kills them.
                seconds = self.random.choice([self.random.uniform(0.5, 4.0), float("inf")])
                process.suspend()
                self._note(role, "SIGSTOP", f"for {seconds:.1f} s")
                if seconds < 60:
                    timer = threading.Timer(seconds, self._go_on, [process])
                    timer.start()
                    self._timers.append(timer)
            else:
                process.send_signal(signal.SIGKILL)
                self._note(role, "SIGKILL")
                if role == "env worker":
                    watch = threading.Thread(target=self._await_replacement, args=(process.pid,), daemon=True)
                    watch.start()
            return 1
        return 0

    def _go_on(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error):
            process.resume()

    def _await_replacement(self, pid: int) -> None:
        """Measure until the environment service has all its workers again, and this one is not among them."""
        start = time.monotonic()
        wanted = self.roles.config.env.processes * len(self.roles.envs)
        headers = authorization(self.roles.credentials.bearer("env"))
        while not self._closed.wait(0.2) and time.monotonic() - start < REPLACE_S:
            pids = []
            for env in self.roles.envs:
                request = urllib.request.Request(f"{env.url}/v1/status", headers=headers)
                with contextlib.suppress(OSError), open_url(request, 5.0) as reply:
                    pids += [worker["pid"] for worker in json.loads(reply.read())["workers"]]
            if len(pids) >= wanted and pid not in pids:
                self.replaced_s.append(round(time.monotonic() - start, 3))
                return

    def _processes(self, role: str) -> list[psutil.Process]:
        """Return the living processes of a kind of victim."""
        roles = self.roles
        if role == "grader":
            return [p for child in [*roles.envs, *roles.workers] for p in _graders(child)]
        found: list[psutil.Process] = []
        for child in CHILDREN[role](roles):
            with contextlib.suppress(psutil.Error):
                parent = psutil.Process(child.popen.pid)
                if role in INNER:
                    found += [p for p in parent.children(recursive=True) if not _is_helper(p)]
                else:
                    found.append(parent)
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def _disturb_network(self) -> None:
        link = self.random.choice(list(self.network.links.values()))
        seconds = self.random.uniform(0.5, 5.0)
        if self.random.random() < 0.5:
            self.network.cut(link, seconds)
            self._note(link.name, "cut", f"for {seconds:.1f} s")
        else:
            delay_s = self.random.uniform(0.05, 0.5)
            self.network.slow(link, delay_s, seconds)
            self._note(link.name, "slowed", f"by {delay_s:.2f} s for {seconds:.1f} s")

    def _note(self, role: str, kind: str, detail: str = "") -> None:
        at_s = round(time.monotonic() - self._begun, 1)
        self.faults.append(Fault(at_s, role, kind, detail))
        print(f"chaos: {at_s:7.1f} s  {kind} {role} {detail}", flush=True)


def _graders(child: Any) -> list[psutil.Process]:
    """Return the processes that compare answers, without those that one comparison is in."""
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(child.popen.pid).children(recursive=True)
        graders = [p for p in below if _runs(p, "grader_main.py")]
        return [p for p in graders if p.ppid() not in {one.pid for one in graders}]
    return []


def _runs(process: psutil.Process, program: str) -> bool:
    return any(program in part for part in process.cmdline())


def _is_helper(process: psutil.Process) -> bool:
    """True for Python's own processes that clean up after others; killing them is pointless."""
    return _runs(process, "multiprocessing.resource_tracker")
