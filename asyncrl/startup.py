"""How long a process may take to start: without progress, not by the clock alone.

A loaded machine makes starting slow, and a slow start must not end a run. Nor may a process that hangs hold it up for
ever. So what counts is the time since the process last made progress.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

KEY = "run.start_timeout_s"
"""Where a user sets the timeout."""
PROGRESS_CPU_S = 1.0
"""CPU time of a process and its descendants together that counts as progress."""
PROGRESS_BYTES = 2**20
"""What they have read or written, beside their log, that does: a model that is downloaded or loaded."""
WAITING_SHARE = 1 / 30
"""How much of the time counts as CPU time for which a process was ready to compute and got no processor: on a machine
with twenty times more to do than it has cores, one that computes is no longer told by its CPU time."""
CHECK_EVERY_S = 1.0
CHECKS = 60
"""How often within its timeout a start is looked at, if that is less often: it takes a look at every process."""
SAME_S = 0.1
"""For so long the processes that were found are those that there are."""
LIMIT_FACTOR = 5
"""A process that is busy without moving data has failed after so many times its timeout."""


class Meter(Protocol):
    """What a process and its descendants have used so far. It falls when one of them ends."""

    def cpu_s(self) -> float:
        """CPU time in seconds."""
        ...

    def data_bytes(self) -> int:
        """Bytes read and written."""
        ...


@dataclass(slots=True)
class Used:
    """A `Meter` of what another process reports."""

    cpu: float = 0.0
    data: int = 0

    def cpu_s(self) -> float:
        return self.cpu

    def data_bytes(self) -> int:
        return self.data


class ProcessMeter:
    """Measures a process of this machine, or only what it has started."""

    def __init__(self, pid: int, descendants_only: bool = False) -> None:
        self.pid = pid
        self.descendants_only = descendants_only
        self._found: list[psutil.Process] = []
        self._found_at = -math.inf

    def cpu_s(self) -> float:
        """See `Meter`. With `WAITING_SHARE` of what the processes have waited for a processor."""
        total = 0.0
        for one in self._processes():
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system + WAITING_SHARE * waited_s(one.pid)
        return total

    def data_bytes(self) -> int:
        total = 0
        for one in self._processes():
            with contextlib.suppress(psutil.Error):
                counts = one.io_counters()
                # From pages in memory or by calls; files that are mapped count where they are read from the disk.
                total += counts.read_chars + counts.write_chars + counts.read_bytes
        return total

    def _processes(self) -> list[psutil.Process]:
        if time.monotonic() - self._found_at > SAME_S:
            self._found = []
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self.pid)
                self._found = [
                    *(() if self.descendants_only else (process,)),
                    *process.children(recursive=True),
                ]
            self._found_at = time.monotonic()
        return self._found


def waited_s(pid: int) -> float:
    """Return for how long a process's main thread has been ready to run and had no processor; 0.0 where the system does
    not say (`/proc/PID/schedstat`, in Linux)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


class StartDeadline:
    """A start has failed after `timeout_s` without progress, or `LIMIT_FACTOR` times that without moving data.

    Progress is output in `log`, `PROGRESS_CPU_S` of CPU time, or `PROGRESS_BYTES` of data. A download takes as long as
    it takes.
    process: the pid of the one that starts, or what measures it. log: None where it has no log of its own.
    """

    def __init__(self, process: int | Meter, timeout_s: float, log: Path | None = None) -> None:
        self.meter = ProcessMeter(process) if isinstance(process, int) else process
        self.timeout_s = timeout_s
        self.log = log
        self._cpu_s, self._log_bytes, self._data_bytes = self.meter.cpu_s(), self._log_size(), self._data()
        self.restart()

    def restart(self) -> None:
        """Give it its full time again, after a pause in which nothing could be observed."""
        self._moved = self._progress = self._checked = time.monotonic()
        """When it last moved data, did anything, and was looked at."""

    def missed(self) -> str:
        """Return how the start failed, "" while it may still succeed. To be called again and again."""
        now = time.monotonic()
        if now - self._checked >= max(CHECK_EVERY_S, self.timeout_s / CHECKS):
            self._checked = now
            if self._progressed():
                self._progress = now
            if self._moved_data():
                self._moved = self._progress = now
        if now - self._progress > self.timeout_s:
            return f"did not start: no progress within {KEY}={self.timeout_s:g} s"
        if now - self._moved > LIMIT_FACTOR * self.timeout_s:
            return f"did not start within {LIMIT_FACTOR} times {KEY}={self.timeout_s:g} s"
        return ""

    def _progressed(self) -> bool:
        cpu_s, log_bytes = self.meter.cpu_s(), self._log_size()
        # It falls when a descendant ends.
        self._cpu_s = min(self._cpu_s, cpu_s)
        if log_bytes <= self._log_bytes and cpu_s < self._cpu_s + PROGRESS_CPU_S:
            return False
        self._cpu_s, self._log_bytes = cpu_s, log_bytes
        return True

    def _moved_data(self) -> bool:
        data_bytes = self._data()
        self._data_bytes = min(self._data_bytes, data_bytes)
        if data_bytes < self._data_bytes + PROGRESS_BYTES:
            return False
        self._data_bytes = data_bytes
        return True

    def _data(self) -> int:
        """Return the bytes that it has read and written, but for those of the log."""
        return self.meter.data_bytes() - self._log_size()

    def _log_size(self) -> int:
        with contextlib.suppress(OSError):
            if self.log is not None:
                return self.log.stat().st_size
        return 0
