"""Starts the sinks of a run with its training, tells of those that fail, and ends them after the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncrl.extensions.metric_sinks.processes import SinkProcesses
from asyncrl.launch.run_monitors import MonitorContext, RunMonitor


class Sending(RunMonitor):
    """The processes of a run's sinks, beside the run."""

    def __init__(self, processes: SinkProcesses, say: Callable[[str], None]) -> None:
        self.processes, self.say = processes, say

    async def tick(self, stats: Mapping[str, Any]) -> bool:
        """See `RunMonitor.tick`."""
        for line in self.processes.failures():
            self.say(line)
        return False

    def ended(self) -> None:
        """See `RunMonitor.ended`."""
        for line in self.processes.finish():
            self.say(line)


def sending(context: MonitorContext) -> Sending:
    """Return what sends the metrics of a run elsewhere."""
    return Sending(SinkProcesses(context.folder, context.roles.config), context.say)
