"""Health probes: whether a process serves, by an HTTP answer or by a file that it touches again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import aiohttp

from asyncrl.credentials import authorization
from asyncrl.data.codec import unpack
from asyncrl.endpoint import stalled_file
from asyncrl.errors import InputError
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.startup import Meter, Used
from asyncrl.tls import client_context

PROBE_TIMEOUT_S = 5.0
LONGEST_PROBE_S = 30.0
ENGINE_ALIVE = "/asyncrl/v1/alive"
CORE_SILENT_S = 5.0
"""An engine's core that has not answered its server for this long computes, or hangs."""
STABLE_S = 15.0
"""A service that has served this long is stable."""


class HealthProbe(Protocol):
    """How to tell whether a process serves. No call may block the event loop."""

    def reset(self) -> None:
        """Called before the process is started again."""
        ...

    def ready(self) -> bool:
        """True once the process has started."""
        ...

    def stable(self, serving_s: float) -> bool:
        """True when the process has served so long or so well that earlier deaths no longer count."""
        ...

    async def alive(self) -> bool:
        """True when the process has just answered."""
        ...

    def hung(self) -> str:
        """Return why the process hangs by its own account, "" where it does not say so."""
        ...

    def meter(self) -> Meter | None:
        """Return what measures the progress of a process that does not answer; None for what it and all that it
        started have used."""
        ...


class HttpProbe:
    """Probes a process that announces its address and answers `GET path`."""

    def __init__(self, process: ManagedProcess, path: str, token: str = "") -> None:
        self.process = process
        self.path = path
        self._headers = authorization(token)
        self._timeout_s = PROBE_TIMEOUT_S

    def reset(self) -> None:
        """Do nothing: the announcement is removed when the process is started."""

    def ready(self) -> bool:
        return self.process.announced()

    def stable(self, serving_s: float) -> bool:
        return serving_s > STABLE_S

    async def alive(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # A slow process gets more time for its next answer.
        self._timeout_s = min(2 * self._timeout_s, LONGEST_PROBE_S)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            # A new connection each time: a kept one may lead to the previous process.
            connector = aiohttp.TCPConnector(ssl=client_context() or True)
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector) as http,
                http.get(self.process.url + self.path) as response,
            ):
                self._timeout_s = PROBE_TIMEOUT_S
                return await self._answered(response)
        return False

    async def _answered(self, response: aiohttp.ClientResponse) -> bool:
        return response.status == 200

    def hung(self) -> str:
        return ""

    def meter(self) -> Meter | None:
        return None


class EngineProbe(HttpProbe):
    """Probes an engine, which may answer while the process that computes, its core, does not: what it says of that
    counts."""

    def __init__(self, process: ManagedProcess, token: str) -> None:
        super().__init__(process, ENGINE_ALIVE, token)
        self._core: Used | None = None
        self._serving = False

    def reset(self) -> None:
        self._core = None

    async def alive(self) -> bool:
        self._serving = False
        answered = await super().alive()
        if answered or not self._serving:
            self._core = None
        return answered

    async def _answered(self, response: aiohttp.ClientResponse) -> bool:
        # Something else may listen where an engine has died.
        with contextlib.suppress(InputError, ValueError, KeyError, TypeError):
            health = unpack(await response.read())
            self._serving = response.status == 200
            if health["core_silent_s"] < CORE_SILENT_S:
                return self._serving
            self._core = self._core or Used()
            self._core.cpu, self._core.data = float(health["core_cpu_s"]), int(health["core_bytes"])
        return False

    def meter(self) -> Meter | None:
        return self._core


class HeartbeatProbe:
    """Probes processes that touch `heartbeats`, one file each, and create `ready_file` when they have started.

    progress: how far their work has come; an increase makes them stable. count: how many processes there are at
    present, if that changes.
    """

    def __init__(
        self,
        ready_file: Path,
        heartbeats: list[Path],
        progress: Callable[[], int],
        count: Callable[[], int] | None = None,
    ) -> None:
        self.ready_file = ready_file
        self.heartbeats = heartbeats
        self.progress = progress
        self.count = count or (lambda: len(heartbeats))
        self._seen: dict[Path, int] = {}
        self._highest = progress()

    def reset(self) -> None:
        for path in (self.ready_file, *self.heartbeats):
            path.unlink(missing_ok=True)
        self._seen.clear()
        for path in self.heartbeats:
            stalled_file(path).unlink(missing_ok=True)

    def ready(self) -> bool:
        return self.ready_file.exists()

    def stable(self, serving_s: float) -> bool:
        before, self._highest = self._highest, max(self._highest, self.progress())
        return self._highest > before

    def hung(self) -> str:
        expected = self.heartbeats[: self.count()]
        if stalled := [path.stem for path in expected if stalled_file(path).exists()]:
            ranks = ", ".join(name.rpartition("-")[2] for name in stalled)
            return f"hangs: rank {ranks} made no progress for what follows from train.stall_timeout_s (see its log)"
        return ""

    def meter(self) -> Meter | None:
        return None

    async def alive(self) -> bool:
        """True when every file has been touched since the last call that returned True."""
        expected = self.heartbeats[: self.count()]
        found = {path: path.stat().st_mtime_ns for path in expected if path.exists()}
        if len(found) < len(expected) or any(found[path] == self._seen.get(path) for path in found):
            return False
        self._seen = found
        return True
