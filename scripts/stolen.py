"""How much of the processor time that was asked for the host of a virtual machine gave to others.

A benchmark on a shared host compares runs minutes apart; seconds times `1 - share` are comparable between them.
"""

from __future__ import annotations

import bisect
import threading
import time
from pathlib import Path

STAT = Path("/proc/stat")
EVERY_S = 0.25


class StolenTime:
    """Notes the machine's processor times until it is stopped."""

    def __init__(self) -> None:
        self.samples = [(time.time(), *processor_times())]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stolen", daemon=True)
        self._thread.start()

    def share(self, start: float, end: float) -> float:
        """Return which part of the time demanded between two moments of `time.time()` was stolen, 0 to 1."""
        first = max(0, bisect.bisect_right(self.samples, start, key=lambda sample: sample[0]) - 1)
        last = bisect.bisect_left(self.samples, end, lo=first + 1, key=lambda sample: sample[0])
        _, ran_before, stolen_before = self.samples[first]
        _, ran, stolen = self.samples[min(last, len(self.samples) - 1)]
        demanded = ran - ran_before + stolen - stolen_before
        return (stolen - stolen_before) / demanded if demanded else 0.0

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
