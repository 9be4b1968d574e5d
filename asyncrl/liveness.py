"""Whether a process that serves lives: it answers, or else it makes progress. One rule for every role.

A process may be busy for long without answering: a large prefill, a compile, weights that are loaded, a garbage
collection of a huge heap. What it then uses of the processor, or the data that it moves, is a sign of life as an
answer is. A process that neither answers nor makes progress is hung. So is one that computes for `BUSY_LIMIT_S`
without answering or moving data, or else one that spins would never be noticed.
"""

from __future__ import annotations

import contextlib
import time

import psutil

from asyncrl.startup import PROGRESS_BYTES, PROGRESS_CPU_S, Meter

BUSY_LIMIT_S = 1800.0
"""How long a process may compute without answering."""
FULL_S = 60.0
"""Over so long `PROGRESS_CPU_S` of CPU time is progress, and over less time a share of it."""
LOOKS = 20
"""How often within its limit a silent process is looked at: each look reads the status of all processes."""
LONGEST_LOOK_S = 5.0
SUSPENDED = "it is suspended (SIGSTOP)"
STATES = {
    psutil.STATUS_STOPPED: SUSPENDED,
    psutil.STATUS_TRACING_STOP: "a debugger has stopped it",
    psutil.STATUS_DISK_SLEEP: "it waits for a disk",
    psutil.STATUS_ZOMBIE: "it has ended and is not collected",
}


class Liveness:
    """The signs of life of one process. Times are monotonic seconds.

    silence_s: how long it may give none. busy_limit_s: how long it may compute without answering.
    """

    def __init__(
        self, silence_s: float, now: float | None = None, busy_limit_s: float = BUSY_LIMIT_S
    ) -> None:
        self.silence_s, self.busy_limit_s = silence_s, max(busy_limit_s, silence_s)
        self.answer(time.monotonic() if now is None else now)

    def answer(self, now: float) -> None:
        """Note that it has answered, or that nothing could be observed until now."""
        self.answered = self._progress = self._moved = now
        """When it last answered, did anything, and moved data or answered."""
        self._looked = now
        self._meter: Meter | None = None
        self._cpu_s, self._data_bytes = 0.0, 0
        self._used_s = 0.0
        """CPU time that was seen since the last answer."""

    def hung(self, now: float, meter: Meter | None) -> str:
        """Return why the process is hung, "" while it may live. To be called again and again while it is silent.

        meter: what to measure; it may be another one than before. None: nothing that could be progress.
        """
        if meter is not None and now - self._looked >= min(self.silence_s / LOOKS, LONGEST_LOOK_S):
            self._looked = now
            self._look(now, meter)
        if now - self._progress > self.silence_s:
            return (
                f"gave no sign of life for {self.silence_s:g} s (no answer, no progress: "
                f"{self._used_s:.1f} s of CPU time since its last answer {now - self.answered:.0f} s ago)"
            )
        if now - self._moved > self.busy_limit_s:
            return (
                f"has not answered for {self.busy_limit_s:g} s, in which it computed for {self._used_s:.0f} s "
                "and moved no data"
            )
        return ""

    def computes(self) -> bool:
        """True while it is silent and has made progress since its last answer."""
        return self._progress > self.answered

    @property
    def used_s(self) -> float:
        """CPU time that was seen since its last answer, in seconds."""
        return self._used_s

    def _look(self, now: float, meter: Meter) -> None:
        cpu_s, data_bytes = meter.cpu_s(), meter.data_bytes()
        if meter is not self._meter:
            # What another one has counted is no progress.
            self._meter, self._cpu_s, self._data_bytes = meter, cpu_s, data_bytes
            return
        # Both fall when a descendant ends.
        self._cpu_s, self._data_bytes = min(self._cpu_s, cpu_s), min(self._data_bytes, data_bytes)
        if cpu_s - self._cpu_s >= PROGRESS_CPU_S * min(1.0, self.silence_s / FULL_S):
            self._used_s += cpu_s - self._cpu_s
            self._cpu_s, self._progress = cpu_s, now
        if data_bytes - self._data_bytes >= PROGRESS_BYTES:
            self._data_bytes, self._progress, self._moved = data_bytes, now, now


def described_state(pid: int) -> str:
    """Return what the system says of a process of this machine that would explain its silence, "" for nothing."""
    with contextlib.suppress(psutil.Error, ValueError):
        if pid > 0:
            return STATES.get(psutil.Process(pid).status(), "")
    return ""
