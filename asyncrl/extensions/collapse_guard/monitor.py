"""Tells the user what the guard did in a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncrl.launch.run_monitors import MonitorContext, RunMonitor


class GuardTold(RunMonitor):
    """Shows the guard's messages, which the trainer records with a step."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def on_step(self, record: Mapping[str, Any]) -> None:
        """See `RunMonitor.on_step`."""
        if verdict := record.get("guard/message"):
            self.say(f"collapse guard: {verdict}")


def telling(context: MonitorContext) -> GuardTold:
    """Return what tells of a run's guard."""
    return GuardTold(context.say)
