"""How long a process may take to start: without progress, not by the clock alone.

A loaded machine makes starting slow, and a slow start must not end a run. Nor may a process that hangs hold it up for
ever. So what counts is the time since the process last made progress.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

KEY = "run.start_timeout_s"
"""Where a user sets the timeout."""
PROGRESS_CPU_S = 1.0
"""CPU time of a process and its descendants together that counts as progress."""
CHECK_EVERY_S = 1.0
LIMIT_FACTOR = 5
"""A process that makes progress without end has failed after so many times its timeout."""


class StartDeadline:
    """A start has failed after `timeout_s` without progress, or after `LIMIT_FACTOR` times that in all.

    Progress is output in `log`, or `PROGRESS_CPU_S` of CPU time.
    pid: of the process that starts. log: None where the process has no log of its own.
    """

    def __init__(self, pid: int, timeout_s: float, log: Path | None = None) -> None:
        self.pid = pid
        self.timeout_s = timeout_s
        self.log = log
        self._cpu_s, self._log_bytes = self._cpu(), self._log_size()
        self.restart()

    def restart(self) -> None:
        """Give it its full time again, after a pause in which nothing could be observed."""
        self._start = self._progress = self._checked = time.monotonic()

    def missed(self) -> str:
        """Return how the start failed, "" while it may still succeed. To be called again and again."""
        now = time.monotonic()
        if now - self._checked >= CHECK_EVERY_S:
            self._checked = now
            if self._progressed():
                self._progress = now
        if now - self._progress > self.timeout_s:
            return f"did not start: no progress within {KEY}={self.timeout_s:g} s"
        if now - self._start > LIMIT_FACTOR * self.timeout_s:
            return f"did not start within {LIMIT_FACTOR} times {KEY}={self.timeout_s:g} s"
        return ""

    def _progressed(self) -> bool:
        cpu_s, log_bytes = self._cpu(), self._log_size()
        # It falls when a descendant ends.
        self._cpu_s = min(self._cpu_s, cpu_s)
        if log_bytes <= self._log_bytes and cpu_s < self._cpu_s + PROGRESS_CPU_S:
            return False
        self._cpu_s, self._log_bytes = cpu_s, log_bytes
        return True

    def _cpu(self) -> float:
        total = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
        return total

    def _log_size(self) -> int:
        with contextlib.suppress(OSError):
            if self.log is not None:
                return self.log.stat().st_size
        return 0
