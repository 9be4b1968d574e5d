"""A buffer on a node of the run: the launcher's machine has its replica, by whose address all find it."""

from __future__ import annotations

from asyncrl.buffer.store import LEDGER
from asyncrl.extensions.replica.replica import FOLDER, seed, settle
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.launch.roles.buffer_place import BufferPlace


class BufferOnNode(BufferPlace):
    """The ledger is on the node, and what it acknowledges in a replica service beside the launcher."""

    def prepare(self) -> None:
        """See `BufferPlace`. The replica begins with the ledger that there is."""
        if (self.folder / LEDGER).exists():
            seed(self.folder / LEDGER, self.folder / FOLDER)

    def start(self, process_group: ProcessGroup, prefix: str, start_timeout_s: float) -> list[str]:
        """See `BufferPlace`. It starts the replica service."""
        self.front = process_group.start(
            f"{prefix}replica", ["serve", "replica", "--folder", str(self.folder)]
        )
        return ["--replica", process_group.wait_ready(self.front, start_timeout_s)]

    def settle(self) -> None:
        """See `BufferPlace`. The replica becomes the ledger."""
        settle(self.folder / FOLDER, self.folder / LEDGER)
