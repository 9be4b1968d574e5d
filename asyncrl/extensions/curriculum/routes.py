"""The buffer's route for a curriculum: the tasks that it chooses among."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import Field

from asyncrl.buffer.ledger import Ledger
from asyncrl.data.codec import task_from_map
from asyncrl.errors import InputError
from asyncrl.services.buffer.messages import MAX_TASKS, Call, Whole, documented, read


class AddPool(Call):
    """The tasks a curriculum chooses among, and how many it proposes in the whole run; 0 for no limit."""

    tasks: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_TASKS)
    total: Whole
    solved: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list, max_length=MAX_TASKS)
    """Places of tasks of which the trainer has a success from before the run."""


def add_routes(app: FastAPI, ledger: Ledger, changed: Callable[[], None]) -> None:
    """Add the route. changed: lets those look again who wait for a lease."""

    @app.post("/v1/pool", openapi_extra=documented(AddPool))
    async def pool(request: Request) -> dict[str, int]:
        """Give the curriculum the tasks it chooses among."""
        from asyncrl.extensions.curriculum.lease_hook import add_pool

        body = await read(request, AddPool)
        tasks = [task_from_map(task, f"tasks[{i}]") for i, task in enumerate(body.tasks)]
        if max(body.solved, default=0) >= len(tasks):
            raise InputError(
                f"solved: must be below {len(tasks)}, the number of tasks, got {max(body.solved)}"
            )
        added = add_pool(ledger, tasks, body.total, body.solved)
        changed()
        return {"added": added}
