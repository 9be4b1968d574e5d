"""What a run reports of the groups in a policy's buffer: those that failed and those that were dropped. Pure."""

from __future__ import annotations

from typing import Any

from asyncrl.launch.reports.dropped import DroppedReport
from asyncrl.launch.reports.failures import FailureReport
from asyncrl.types import MAIN_POLICY


class BufferReport:
    """Follows the counts of one policy's buffer.

    policy: its name, which lines of the main one leave out.
    """

    def __init__(self, groups_per_step: int, policy: str = MAIN_POLICY) -> None:
        self.policy = policy
        self.failures = FailureReport(groups_per_step)
        self.dropped = DroppedReport(groups_per_step)

    def new_messages(self, stats: dict[str, Any]) -> list[str]:
        """Return what these counts say and has not been reported."""
        lines = [*self.failures.new_messages(stats), *self.dropped.new_messages(stats)]
        return lines if self.policy == MAIN_POLICY else [f"policy {self.policy}: {line}" for line in lines]
