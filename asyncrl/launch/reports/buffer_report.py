"""What a run reports of the groups in a policy's buffer: those that failed and those that were dropped. Pure."""

from __future__ import annotations

from typing import Any

from asyncrl.launch.reports.dropped import DroppedReport
from asyncrl.launch.reports.failures import FailureReport


class BufferReport:
    """Follows the counts of one policy's buffer.

    policy: its name, "" for the main one, of which alone the lines do not name it.
    """

    def __init__(self, groups_per_step: int, policy: str = "") -> None:
        self.policy = policy
        self.failures = FailureReport(groups_per_step)
        self.dropped = DroppedReport(groups_per_step)

    def new_messages(self, stats: dict[str, Any]) -> list[str]:
        """Return what these counts say and has not been reported."""
        lines = [*self.failures.new_messages(stats), *self.dropped.new_messages(stats)]
        return [f"policy {self.policy}: {line}" if self.policy else line for line in lines]
