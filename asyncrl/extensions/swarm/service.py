"""Rollouts shared between runs (a swarm).

    asyncrl serve swarm --state DIR

Runs leave groups here and fetch those of others; see `store` for what is kept. A killed one that is started again on
its folder has all that it had acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from asyncrl.credentials import Access, write_private
from asyncrl.data.codec import pack
from asyncrl.extensions.swarm.messages import MAX_GROUP_BYTES, Fetch, FromPeer, Publish
from asyncrl.extensions.swarm.store import Store
from asyncrl.http_checks import MSGPACK
from asyncrl.services.buffer.messages import read
from asyncrl.services.command import Address
from asyncrl.services.http.app import add_hot_route, create_app

MAX_BODY_BYTES = 8 * MAX_GROUP_BYTES
TOKEN_FILE = "swarm-token"
"""File of the state folder: credentials that are good for this service alone."""


def create_swarm_app(store: Store, access: Access) -> FastAPI:
    """Return the HTTP app."""
    app = create_app("asyncrl swarm", access, {"": {"trainer", "peer"}}, MAX_BODY_BYTES)

    def add(name: str, kind: type[FromPeer], act: Callable[[Any], dict[str, Any]]) -> None:
        async def answer(request: Request) -> Response:
            message = await read(request, kind)
            return Response(pack(await asyncio.to_thread(act, message)), media_type=MSGPACK)

        add_hot_route(app, f"/v1/swarm/{name}", answer)

    add("publish", Publish, store.publish)
    add("fetch", Fetch, store.fetch)

    @app.get("/v1/swarm/status")
    async def status() -> dict[str, Any]:
        """How many groups of which runs there are."""
        return await asyncio.to_thread(store.status)

    return app


def serve_swarm(folder: Path, address: Address) -> None:
    """Serve until stopped. Raises `ConfigError` for a folder that holds something else."""
    access = address.credentials.access("swarm")
    store = Store(folder)
    if address.credentials.run_token:
        write_private(folder / TOKEN_FILE, address.credentials.issue("peer").text)
        print(
            f"asyncrl: runs share rollouts here with swarm.token_file={folder / TOKEN_FILE}", file=sys.stderr
        )
    try:
        address.serve(create_swarm_app(store, access))
    finally:
        store.close()
