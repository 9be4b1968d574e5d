"""What extensions do beside a run while it trains: they see the buffer's counts and each
step, and may start and end processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.extensions.table import rows
from asyncrl.launch.roles.roles import Roles
from asyncrl.services.buffer.client import BufferClient


@dataclass(frozen=True, slots=True)
class MonitorContext:
    """What the factories of monitors are given."""

    roles: Roles
    buffer: BufferClient
    folder: Path
    """The run's folder."""
    say: Callable[[str], None]
    """Shows a line to the user."""


class RunMonitor:
    """Called again and again from the main thread while the run trains; it must not block."""

    async def tick(self, stats: Mapping[str, Any]) -> bool:
        """Look, and act. stats: the buffer's latest counts.

        Return True when processes that others must know of have come or are leaving: then the job is described anew.
        """
        return False

    def on_step(self, record: Mapping[str, Any]) -> None:
        """See what was recorded of a step."""

    def ended(self) -> None:
        """Finish what is left, when the run's processes have ended, however it went."""


def run_monitors(context: MonitorContext) -> list[RunMonitor]:
    """Return the monitors that the run's recipe asks for."""
    return [row.load()(context) for row in rows("run_monitors") if row.wanted(context.roles.config)]
