"""The seam for where a policy's buffer keeps its ledger: plainly in the policy's folder, on the launcher's machine."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.launch.processes.process_group import ManagedProcess, ProcessGroup


class BufferPlace:
    """The plain place, which needs nothing. folder: the policy's.

    What another one keeps there while the run is on is called `ledger.` and the name of its row.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.front: ManagedProcess | None = None
        """By whose address all find the buffer, if not by its own."""

    def prepare(self) -> None:
        """Call once the run's machines are there, before `start`. Raises `ConfigError`, `UnavailableError`."""

    def start(self, process_group: ProcessGroup, prefix: str, start_timeout_s: float) -> list[str]:
        """Start what the buffer needs before it; return further arguments of the buffer's process.

        prefix: of the names of the policy's processes. Raises `ConfigError`, `DeadlineError`.
        """
        return []

    def settle(self) -> None:
        """Have in the folder what the buffer has acknowledged, once it has ended. Repeated after a crash it does the
        rest. Raises `ConfigError`."""


def buffer_place(config: Config, folder: Path) -> BufferPlace:
    """Return where a policy's buffer keeps its ledger."""
    for row in rows("buffer_places"):
        if row.wanted(config):
            found: BufferPlace = row.load()(folder)
            return found
    return BufferPlace(folder)


def settle_ledger(folder: Path) -> None:
    """Have in a policy's folder what buffers elsewhere have acknowledged, also in an earlier launch of the run. Raises
    `ConfigError`."""
    for row in rows("buffer_places"):
        if (folder / f"ledger.{row.name}").exists():
            row.load()(folder).settle()
