"""When a trainer's main thread last got on, for another thread that watches it."""

from __future__ import annotations

import time


class Progress:
    """Marked by the verbs of `TrainEngine`: each micro-batch, tensor, collective and look for groups."""

    def __init__(self) -> None:
        self._marked = time.monotonic()

    def mark(self) -> None:
        """Note that something has been done."""
        self._marked = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last mark."""
        return time.monotonic() - self._marked
