"""The outer optimizer of several trainers that train one policy and synchronise seldom (DiLoCo, NoLoCo).

    asyncrl serve outer --state DIR

Members exchange fragments of their weights with it; see `rounds` for what it does with them. A killed one that is
started again on its folder goes on where it was: what it had acknowledged counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from asyncrl.credentials import Access
from asyncrl.data.codec import pack
from asyncrl.extensions.outer.messages import PART_BYTES, FromMember, Join, Look, Part, Put, Read
from asyncrl.extensions.outer.rounds import Rounds
from asyncrl.http_checks import MSGPACK
from asyncrl.outage_log import OutageLog
from asyncrl.services.buffer.messages import read
from asyncrl.services.command import Address
from asyncrl.services.http.app import add_hot_route, create_app

log = logging.getLogger("asyncrl.outer")

LOOK_S = 0.1
TICK_S = 0.5
"""How often rounds are looked at that may have waited long enough."""
MAX_BODY_BYTES = PART_BYTES + 64 * 2**20
"""A part, or the names and shapes of all parameters."""


def create_outer_app(rounds: Rounds, access: Access) -> FastAPI:
    """Return the HTTP app."""

    async def close_overdue() -> None:
        outages = OutageLog(log, "rounds that end")
        while True:
            await asyncio.sleep(TICK_S)
            with outages.lived_through():
                await asyncio.to_thread(rounds.close_overdue)

    app = create_app(
        "asyncrl outer", access, {"": {"trainer"}}, MAX_BODY_BYTES, background={"deadlines": close_overdue}
    )

    def add(name: str, kind: type[FromMember], act: Callable[[Any], Any]) -> None:
        async def answer(request: Request) -> Response:
            message = await read(request, kind)
            return Response(pack(await asyncio.to_thread(act, message) or {}), media_type=MSGPACK)

        add_hot_route(app, f"/v1/outer/{name}", answer)

    async def look(request: Request) -> Response:
        message = await read(request, Look)
        deadline = time.monotonic() + message.wait_s
        while (found := await asyncio.to_thread(rounds.look, message)) is None:
            if time.monotonic() >= deadline or app.state.stopping.is_set():
                break
            await asyncio.sleep(LOOK_S)
        return Response(pack({"found": found}), media_type=MSGPACK)

    add("join", Join, rounds.join)
    add("part", Part, lambda message: {"received": rounds.part(message)})
    add("put", Put, rounds.put)
    add("read", Read, lambda message: {"data": rounds.read(message)})
    add("leave", FromMember, rounds.leave)
    add_hot_route(app, "/v1/outer/look", look)

    @app.get("/v1/outer/status")
    async def status() -> dict[str, Any]:
        """How far each fragment and each member is."""
        return rounds.status()

    return app


def serve_outer(folder: Path, address: Address) -> None:
    """Serve until stopped. Raises `ConfigError` for a folder that holds something else."""
    access = address.credentials.access("outer")
    rounds = Rounds(folder)
    try:
        address.serve(create_outer_app(rounds, access))
    finally:
        rounds.close()
