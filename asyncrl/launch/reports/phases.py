"""Progress of the phases of training in which no step ends: before the first batch, and after the last step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from asyncrl.launch.reports.panel import draws_panels
from asyncrl.progress import Progress


class TrainingPhases:
    """Tells of them by lines. Where a panel is drawn, it shows the buffer itself."""

    def __init__(self, num_steps: int, groups_per_step: int) -> None:
        self._num_steps = num_steps
        self._shown = not draws_panels(sys.stderr)
        self._first: Progress | None = Progress("first batch", groups_per_step, "groups")
        self._last: Progress | None = None

    def tick(self, stats: Mapping[str, Any], step: int | None) -> None:
        """stats: the buffer's counts. step: the last one that was trained in this launch, None before."""
        if not self._shown:
            return
        if self._first is not None:
            there = stats["ready"] + stats["taken"]
            self._first.note = f"{stats['in_flight']} running"
            if step is None and there <= self._first.total:
                self._first.advance(max(0, there - self._first.done))
            elif step is not None:
                # What was counted last is not what the trainer took.
                self._first.unit = ""
                self._first.end()
                self._first = None
        if step is not None and step >= self._num_steps:
            self._last = self._last or Progress("last checkpoint, and the end of the trainer")
            self._last.advance(0)

    def end(self) -> None:
        """The trainer has ended."""
        for text in (self._first, self._last):
            if text is not None:
                text.end()
