"""The buffer's route for what a judge may cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Request
from pydantic import Field

from asyncrl.buffer.ledger import Ledger
from asyncrl.extensions.judge.budget import ROUTE
from asyncrl.services.buffer.messages import Call, documented, read

Count = Annotated[int, Field(ge=0, le=2**53)]


class Report(Call):
    """All that a process has spent since it started, with the request that it is about to send."""

    client: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    requests: Count
    tokens: Count


def add_routes(app: FastAPI, ledger: Ledger, changed: Callable[[], None]) -> None:
    """Add the route."""

    @app.post(ROUTE, openapi_extra=documented(Report))
    async def budget(request: Request) -> dict[str, str]:
        """Count what a worker asks of the judge; say why it may ask no more, "" where it may."""
        from asyncrl.extensions.judge.spending import report_spending

        body = await read(request, Report)
        return {"spent": report_spending(ledger, body.client, body.requests, body.tokens)}
