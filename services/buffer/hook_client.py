"""What hooks of the ledger are told from outside its transactions (`hook_routes`)."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.data.codec import task_to_map
from asyncrl.services.buffer.client import BufferClient, BufferClientSync
from asyncrl.types import Task


async def add_pool(
    client: BufferClient, tasks: Sequence[Task], total: int, solved: Sequence[int] = ()
) -> int:
    """Give the curriculum its tasks; return how many were new. Raises `ConflictError` for another pool.

    solved: places of tasks of which the trainer has a success from before the run.
    """
    body = {"tasks": [task_to_map(task) for task in tasks], "total": total, "solved": list(solved)}
    return int((await client.tell("/v1/pool", body))["added"])


def join_opponents(client: BufferClientSync, versions: Sequence[int]) -> None:
    """Have copies of these versions of the run's exploiter, and no others, be members of the population."""
    client.tell("/v1/opponents", {"versions": list(versions)})
