"""The buffer's route for opponents: which versions of the exploiter are members of the population."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Request
from pydantic import Field

from asyncrl.buffer.ledger import Ledger
from asyncrl.services.buffer.messages import Call, documented, read


class JoinedOpponents(Call):
    versions: list[Annotated[int, Field(ge=0)]] = Field(max_length=10_000)


def add_routes(app: FastAPI, ledger: Ledger, changed: Callable[[], None]) -> None:
    """Add the route."""

    @app.post("/v1/opponents", openapi_extra=documented(JoinedOpponents))
    async def opponents(request: Request) -> dict[str, list[int]]:
        """Have copies of these versions of the run's exploiter, and no others, be members of the population."""
        from asyncrl.extensions.league.lease_hook import join_opponents

        body = await read(request, JoinedOpponents)
        join_opponents(ledger, body.versions)
        return {"versions": body.versions}
