"""What a run's processes did, every two seconds: `activity.jsonl`, which can be drawn as a timeline.

A line holds `time` (seconds since 1970), `engines` (by name: requests that are decoded and that wait, the share of the
KV cache in use, whether it is paused, and since its start its iterations and the tokens, read and sampled, that they
computed), `environments` (by name of a service: its sessions, those in a step, and since its start its
steps), `buffer` (groups by state), by name of a process that lives its `pids`, and with all it started its
`processes` (processor time, in cores) and `memory_bytes` (resident; pages that processes share count in each), and of
the machine its `cores`, and how much of `cpu` and `memory` is in use, as shares. `counts` are the workers, environment
services and engines that there are. `engine_troubles` are what the workers say of engines that serve them nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from asyncrl.clock import stamp_s
from asyncrl.credentials import Credentials, authorization
from asyncrl.data.codec import unpack
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.tls import client_context

log = logging.getLogger("asyncrl.launch")

EVERY_S = 2.0
ANSWER_S = 1.0
"""How long a service has to answer; an engine that swaps its weights may take longer, and is left out of that line."""
FILE = "activity.jsonl"
_ENGINE = ("running", "waiting", "kv_usage", "paused", "version", "iterations", "computed_tokens")
_ENVIRONMENT = ("sessions", "stepping", "steps")
_BUFFER = ("version", "pending", "in_flight", "ready", "taken", "trained", "dropped", "failed", "slots")


class ActivityLog:
    """Appends to a run's `activity.jsonl`. No run depends on it: a disk that refuses a line ends only this log."""

    def __init__(
        self,
        folder: Path,
        processes: Sequence[ManagedProcess],
        engines: Sequence[ManagedProcess],
        environments: Sequence[ManagedProcess],
        credentials: Credentials,
    ) -> None:
        self._file = folder / FILE
        self._processes, self._engines, self._environments = processes, engines, environments
        self._credentials = credentials
        self._counts: dict[str, int] = {}
        self._last_s = float("-inf")
        self._used_s: dict[int, float] = {}
        self._used_at = time.monotonic()
        self._ended = False
        psutil.cpu_percent()

    def follow(
        self,
        processes: Sequence[ManagedProcess],
        engines: Sequence[ManagedProcess],
        environments: Sequence[ManagedProcess],
        workers: Sequence[ManagedProcess],
    ) -> None:
        """Record these from now on: processes come and go."""
        self._processes, self._engines, self._environments = processes, engines, environments
        self._counts = {"rollout": len(workers), "env": len(environments), "engine": len(engines)}

    async def record(
        self, stats: Mapping[str, Any], engine_troubles: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Append a line when one is due. stats: the buffer's latest counts; engine_troubles: what workers say."""
        if self._ended or time.monotonic() - self._last_s < EVERY_S:
            return
        self._last_s = time.monotonic()
        engines = _chosen(await states("engine", self._engines, self._credentials), _ENGINE)
        environments = _chosen(await states("env", self._environments, self._credentials), _ENVIRONMENT)
        cores, memory_bytes = self._used()
        line = {
            "time": round(stamp_s(), 3),
            "engines": engines,
            "environments": environments,
            "buffer": {name: stats[name] for name in _BUFFER},
            "counts": self._counts,
            "pids": {process.name: process.popen.pid for process in self._processes if process.alive()},
            "processes": cores,
            "memory_bytes": memory_bytes,
            "cores": psutil.cpu_count(),
            "cpu": round(psutil.cpu_percent() / 100, 3),
            "memory": round(psutil.virtual_memory().percent / 100, 3),
            **({"engine_troubles": list(engine_troubles)} if engine_troubles else {}),
        }
        try:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._ended = True
            log.warning("%s: %s; the run's activity is no longer recorded", self._file, error.strerror)

    def _used(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return by process, with its descendants, the cores used since the last call and the resident bytes."""
        # Each process of a run leads a session of its own; those of other machines have no pid here.
        names = {process.popen.pid: process.name for process in self._processes if process.popen.pid > 0}
        used_s, resident = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if (leader := os.getsid(process.pid)) in used_s:
                    times = process.cpu_times()
                    used_s[leader] += times.user + times.system
                    resident[leader] += process.memory_info().rss
        now = time.monotonic()
        passed_s = max(1e-3, now - self._used_at)
        # Less than before: a child has ended, and took its time with it.
        cores = {
            names[pid]: round(max(0.0, used_s[pid] - self._used_s[pid]) / passed_s, 3)
            for pid in used_s
            if pid in self._used_s
        }
        self._used_s, self._used_at = used_s, now
        return cores, {names[pid]: size for pid, size in resident.items() if size}


async def states(
    role: str, processes: Sequence[ManagedProcess], credentials: Credentials
) -> dict[str, dict[str, Any]]:
    """Return what services of a role say of themselves, by name; those that do not answer are left out."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(ssl=client_context() or True)
    headers = authorization(credentials.bearer(role))
    route = "/asyncrl/v1/state" if role == "engine" else "/v1/status"
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as http:
        found = await asyncio.gather(*(_state(http, process.url + route) for process in processes))
    return {process.name: state for process, state in zip(processes, found, strict=True) if state is not None}


def _chosen(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        process: {name: state[name] for name in names if name in state} for process, state in found.items()
    }


async def _state(http: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with http.get(url) as answer:
            if answer.status == 200:
                state: dict[str, Any] = (
                    await answer.json() if _is_json(answer) else unpack(await answer.read())
                )
                return state
    return None


def _is_json(answer: aiohttp.ClientResponse) -> bool:
    return answer.content_type == "application/json"
