"""Routes for hooks of the ledger: what they are told from outside its transactions."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request

from asyncrl.buffer.hooks.opponents import join_opponents
from asyncrl.buffer.hooks.proposals import add_pool
from asyncrl.buffer.ledger import Ledger
from asyncrl.data.codec import task_from_map
from asyncrl.services.buffer import messages
from asyncrl.services.buffer.messages import documented, read

HOOK_ROLES = {"/v1/opponents": {"trainer"}}
"""Which roles may call what, besides the launcher."""


def add_hook_routes(app: FastAPI, ledger: Ledger, changed: Callable[[], None]) -> None:
    """Add the routes; `changed` lets those look again who wait for a lease or a batch."""

    @app.post("/v1/pool", openapi_extra=documented(messages.AddPool))
    async def pool(request: Request) -> dict[str, int]:
        """Give the curriculum the tasks it chooses among."""
        body = await read(request, messages.AddPool)
        added = add_pool(
            ledger, [task_from_map(task, f"tasks[{i}]") for i, task in enumerate(body.tasks)], body.total
        )
        changed()
        return {"added": added}

    @app.post("/v1/opponents", openapi_extra=documented(messages.JoinedOpponents))
    async def opponents(request: Request) -> dict[str, list[int]]:
        """Have copies of these versions of the run's exploiter, and no others, be members of the population."""
        body = await read(request, messages.JoinedOpponents)
        join_opponents(ledger, body.versions)
        return {"versions": body.versions}
