"""How much processor time the machine used, and how much its host gave to others.

A benchmark on a shared host compares runs minutes apart; seconds times `1 - share` are comparable between them.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from pathlib import Path

STAT = Path("/proc/stat")
EVERY_S = 0.25
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class StolenTime:
    """Notes the machine's processor times until it is stopped."""

    def __init__(self) -> None:
        self.samples = [(time.time(), *processor_times())]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stolen", daemon=True)
        self._thread.start()

    def share(self, start: float, end: float) -> float:
        """Return which part of the time demanded between two moments of `time.time()` was stolen, 0 to 1."""
        _, ran, stolen = self._between(start, end)
        return stolen / (ran + stolen) if ran + stolen else 0.0

    def used_s(self, start: float, end: float) -> float:
        """Return the processor seconds that all of the machine used between two moments of `time.time()`."""
        covered_s, ran, _ = self._between(start, end)
        return ran / TICKS_PER_S * (end - start) / covered_s if covered_s else 0.0

    def _between(self, start: float, end: float) -> tuple[float, int, int]:
        """Return seconds, ticks that ran and ticks that were stolen between the samples around two moments."""
        first = max(0, bisect.bisect_right(self.samples, start, key=lambda sample: sample[0]) - 1)
        last = bisect.bisect_left(self.samples, end, lo=first + 1, key=lambda sample: sample[0])
        before, after = self.samples[first], self.samples[min(last, len(self.samples) - 1)]
        return after[0] - before[0], after[1] - before[1], after[2] - before[2]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.samples.append((time.time(), *processor_times()))


def processor_times(stat: Path = STAT) -> tuple[int, int]:
    """Return ticks that ran and ticks that were stolen since the machine began; zeros where there is no such file."""
    if not stat.exists():
        return 0, 0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, stat.read_text().splitlines()[0].split()[1:9]
    )
    return user + nice + system + irq + softirq, steal
