"""The routes of checkpoints: deleted, published, copied, downloaded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker import messages
from asyncrl.extensions.tinker.checkpoints import EXTERNAL_WEIGHTS, expiry
from asyncrl.extensions.tinker.clients import OWNER, Client
from asyncrl.extensions.tinker.links import LINK_S, Links
from asyncrl.extensions.tinker.server import Server, read
from asyncrl.extensions.tinker.tables import Checkpoint

API = "/api/v1"
FILES = "files"
"""Below `API`, without a token: what the addresses of `Links` lead to."""
ONE = f"{API}/training_runs/{{policy}}/checkpoints/{{kind}}/{{name}}"
DONE = 204


def add_checkpoint_routes(
    app: FastAPI, server: Server, links: Links, client_of: Callable[[Request], Client]
) -> None:
    """Add them."""

    def seen(client: str, policy: str, kind: str, name: str) -> Checkpoint:
        return server.checkpoints.find(f"tinker://{policy}/{kind}/{name}", client)

    def one(request: Request) -> Checkpoint:
        """Return the checkpoint that a request is to change, which is its caller's own."""
        path = "tinker://{policy}/{kind}/{name}".format(**request.path_params)
        return server.checkpoints.find(path, client_of(request).name, is_own=True)

    @app.delete(ONE)
    async def delete(request: Request) -> Response:
        server.checkpoints.remove(one(request))
        return Response(status_code=DONE)

    @app.put(f"{ONE}/ttl")
    async def set_ttl(request: Request) -> Response:
        message, found = read(messages.TimeToLive, await request.body()), one(request)
        server.ledger.add_checkpoint(replace(found, expires=expiry(message.ttl_seconds)))
        return Response(status_code=DONE)

    # What is published already stays so: the same request again must not fail.
    @app.post(f"{ONE}/publish")
    async def publish(request: Request) -> Response:
        server.ledger.add_checkpoint(replace(one(request), public=True))
        return Response(status_code=DONE)

    @app.delete(f"{ONE}/publish")
    async def unpublish(request: Request) -> Response:
        server.ledger.add_checkpoint(replace(one(request), public=False))
        return Response(status_code=DONE)

    @app.post(f"{API}/copy_weights")
    async def copy(request: Request) -> dict[str, Any]:
        message = read(messages.CopyWeights, await request.body())
        if message.destination_project_id is None:
            raise InputError("destination_project_id: must be given; this server copies into no session")
        key = request.headers.get("x-idempotency-key") or uuid.uuid4().hex
        return {"tinker_path": await asyncio.to_thread(server.copy, message, client_of(request), key)}

    @app.get(f"{ONE}/external_weights_urls")
    async def urls(policy: str, kind: str, name: str, request: Request) -> dict[str, Any]:
        found = seen(client_of(request).name, policy, kind, name)
        if kind != EXTERNAL_WEIGHTS:
            raise InputError(
                f"{found.path}: must be of {EXTERNAL_WEIGHTS}, which save_weights_external makes"
            )
        expires = stamp_s() + LINK_S
        where = f"{str(request.base_url).rstrip('/')}{API}/{FILES}"
        return {
            "urls": {
                file.name: f"{where}?{links.query(policy, name, file.name, expires)}"
                for file in server.checkpoints.files(found)
            },
            "expires": datetime.fromtimestamp(expires, UTC).isoformat(),
        }

    @app.get(f"{API}/{FILES}")
    async def file(request: Request) -> Response:
        policy, name, wanted = links.check(request.query_params)
        files = server.checkpoints.files(seen(OWNER.name, policy, EXTERNAL_WEIGHTS, name))
        if (found := next((path for path in files if path.name == wanted), None)) is None:
            raise InputError(f"file: there is no {wanted!r} in this checkpoint")
        return FileResponse(found, media_type="application/octet-stream")
