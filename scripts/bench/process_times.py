"""How much processor time each process of a run used: what a group costs in which of them."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Sequence

import psutil

EVERY_S = 0.5
API_SERVER, ENGINE_CORE, LAUNCHER, OTHER = "api_server", "engine_core", "launcher", "other"


class ProcessTimes:
    """Notes the processor times of this process and of all that it started, by role, until it is stopped."""

    def __init__(self) -> None:
        self._roles: dict[int, str] = {}
        self._ended: dict[str, float] = {}
        """Processor seconds of processes that have ended, by role."""
        self._last: dict[int, float] = {}
        self.samples: list[tuple[float, dict[str, float]]] = [self._sample()]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process times", daemon=True)
        self._thread.start()

    def used_s(self, start: float, end: float) -> dict[str, float]:
        """Return the processor seconds that each role used between two moments of `time.time()`."""
        before, after = self._at(start), self._at(end)
        return {role: after[role] - before.get(role, 0.0) for role in after}

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _at(self, moment: float) -> dict[str, float]:
        """Return what each role had used by then, between two samples in proportion."""
        place = bisect.bisect_left(self.samples, moment, key=lambda sample: sample[0])
        (early_s, early), (late_s, late) = (
            self.samples[max(0, place - 1)],
            self.samples[min(place, len(self.samples) - 1)],
        )
        part = (moment - early_s) / (late_s - early_s) if late_s > early_s else 0.0
        return {role: early.get(role, 0.0) + part * (late[role] - early.get(role, 0.0)) for role in late}

    def _sample(self) -> tuple[float, dict[str, float]]:
        own = psutil.Process()
        used: dict[int, float] = {}
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
                # A process takes its command after its start, and the engine's core its title later still. One that
                # has ended, which nobody has waited for yet, has times but no command.
                if self._roles.setdefault(process.pid, OTHER) in (OTHER, API_SERVER):
                    self._roles[process.pid] = (
                        LAUNCHER if process.pid == own.pid else role_of(process.cmdline())
                    )
        for pid in self._last.keys() - used.keys():
            role = self._roles.pop(pid)
            self._ended[role] = self._ended.get(role, 0.0) + self._last[pid]
        self._last = used
        found = dict(self._ended)
        for pid, seconds in used.items():
            role = self._roles[pid]
            found[role] = found.get(role, 0.0) + seconds
        return time.time(), found

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.samples.append(self._sample())


def role_of(command: Sequence[str]) -> str:
    """Return the role of a process by its command line: that of `asyncrl serve`, or the part of vLLM's server.

    The engine's core is forked from the API server and takes another title once it has started.
    """
    if any("EngineCore" in word for word in command):
        return ENGINE_CORE
    if any(word.endswith("vllm_api_server") for word in command):
        return API_SERVER
    if "serve" in command:
        return command[list(command).index("serve") + 1]
    return OTHER
