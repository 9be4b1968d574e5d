"""The routes of Tinker's protocol, as its Python SDK calls them (`asyncrl serve tinker`).

What computes answers at once with a request's name; the answer is fetched by `retrieve_future`, which waits a while and
says 408 where there is none yet.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from asyncrl.credentials import Access
from asyncrl.errors import InputError
from asyncrl.extensions.tinker import messages
from asyncrl.extensions.tinker.checkpoint_routes import API, FILES, add_checkpoint_routes
from asyncrl.extensions.tinker.engine import EngineKeeper
from asyncrl.extensions.tinker.links import Links
from asyncrl.extensions.tinker.server import FinishedError, Server, TooManyError, read, shown
from asyncrl.extensions.tinker.tables import (
    FORWARD_BACKWARD,
    LOAD,
    OPTIM_STEP,
    SAVE,
    SAVE_EXTERNAL,
    SAVE_FOR_SAMPLER,
)
from asyncrl.extensions.tinker.wire import MEDIA_TYPE, request_head
from asyncrl.services.http.app import OPEN_PATHS, create_app

KEY_PREFIX = b"tml-"
"""The SDK sends no key that begins otherwise."""
EXPIRY_CHECK_S = 60.0
MAX_BODY_BYTES = 64 * 2**20
LIMIT = 100
UNEMBEDDING = (
    "this server trains adapters of attention and MLP layers and leaves the unembedding (train_unembed)"
)
Handler = Callable[[bytes], Awaitable[Any]]


class KeyHeader:
    """ASGI middleware: the key that the SDK sends is the bearer token of everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"x-api-key", b"")
            if given.startswith(KEY_PREFIX):
                others = [one for one in scope["headers"] if one[0] not in (b"authorization", b"x-api-key")]
                token = (b"authorization", b"Bearer " + given.removeprefix(KEY_PREFIX))
                scope = {**scope, "headers": [*others, token]}
        await self.app(scope, receive, send)


def create_tinker_app(server: Server, access: Access, links: Links, keeper: EngineKeeper | None) -> FastAPI:
    """Return the app. links: to files. keeper: of the engine; None where there is one already."""

    @asynccontextmanager
    async def sampling() -> AsyncIterator[None]:
        server.sampling.resume()
        yield
        await server.sampling.close()

    async def expire() -> None:
        while True:
            server.unload_deserted()
            await asyncio.to_thread(server.tidy)
            await asyncio.sleep(EXPIRY_CHECK_S)

    background: dict[str, Any] = {"training": server.training.run, "expiry": expire}
    if keeper is not None:
        background["engine"] = keeper.run
    app = create_app(
        "asyncrl tinker",
        access,
        max_body_bytes=MAX_BODY_BYTES,
        statuses={TooManyError: 429, FinishedError: 410},
        background=background,
        lifespan=sampling,
        open_paths={*OPEN_PATHS, f"{API}/healthz", f"{API}/{FILES}"},
        binary_types=(MEDIA_TYPE,),
    )
    app.add_middleware(KeyHeader)
    _add_session_routes(app, server)
    _add_training_routes(app, server)
    _add_sampling_routes(app, server)
    _add_listing_routes(app, server)
    add_checkpoint_routes(app, server, links)
    return app


def _post(app: FastAPI, handlers: Mapping[str, Handler]) -> None:
    """Answer `POST path` by what its handler makes of the body: a response, or an object for JSON."""

    def answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            found = await handler(await request.body())
            return found if isinstance(found, Response) else JSONResponse(found)

        return answer

    for path, handler in handlers.items():
        app.add_api_route(f"{API}/{path}", answering(handler), methods=["POST"])


def _add_session_routes(app: FastAPI, server: Server) -> None:
    async def config(body: bytes) -> Any:
        return {
            "parallel_fwdbwd_chunks": True,
            "proto_compress_fwdbwd": False,
            "sample_use_retrieve_futures": False,
        }

    async def dynamic_config(body: bytes) -> Any:
        return {"sample_cancel_enabled": True}

    async def create_session(body: bytes) -> Any:
        message = read(messages.CreateSession, body)
        name = uuid.uuid4().hex
        server.ledger.add_session(name, message.model_dump())
        return {"type": "create_session", "session_id": name, "info_message": UNEMBEDDING}

    async def heartbeat(body: bytes) -> Any:
        session = read(messages.Session, body).session_id
        server.need_session(session)
        server.need_unfinished(session)
        return {"type": "session_heartbeat"}

    async def telemetry(body: bytes) -> Any:
        return {"status": "accepted"}

    async def weights_info(body: bytes) -> Any:
        checkpoint = server.checkpoints.find(read(messages.Path, body).tinker_path)
        settings = server.policy(checkpoint.policy).settings
        return {
            "base_model": settings["base_model"],
            "is_lora": True,
            "lora_rank": settings["rank"],
            "train_unembed": False,
            "train_mlp": settings["mlp"],
            "train_attn": settings["attention"],
        }

    handlers = {
        "client/config": config,
        "client/dynamic_config": dynamic_config,
        "create_session": create_session,
        "session_heartbeat": heartbeat,
        "telemetry": telemetry,
        "weights_info": weights_info,
    }
    _post(app, handlers)

    @app.get(f"{API}/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ready"}

    @app.get(f"{API}/get_server_capabilities")
    async def capabilities() -> dict[str, Any]:
        model = {
            "model_name": server.name,
            "max_context_length": server.sampling.context,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [model]}

    @app.post(f"{API}/sessions/{{session}}/finish")
    async def finish(session: str) -> dict[str, Any]:
        server.need_session(session)
        server.ledger.finish(session)
        server.unload_deserted()
        return {}


def _add_training_routes(app: FastAPI, server: Server) -> None:
    async def create_model(body: bytes) -> Any:
        message = read(messages.CreateModel, body)
        return server.creating(message.session_id, message.model_seq_id, body)

    async def load_weights(body: bytes) -> Any:
        message = read(messages.LoadWeights, body)
        if message.model_id is not None and message.seq_id is not None:
            return server.of_policy(message.model_id, message.seq_id, LOAD, body)
        if message.session_id is not None and message.model_seq_id is not None:
            return server.creating(message.session_id, message.model_seq_id, body)
        raise InputError("model_id and seq_id, or session_id and model_seq_id: must be given")

    async def forward_backward(body: bytes) -> Any:
        policy, number = request_head(body)
        return server.of_policy(policy, number, FORWARD_BACKWARD, body)

    async def optim_step(body: bytes) -> Any:
        message = read(messages.OptimStep, body)
        return server.of_policy(message.model_id, message.seq_id, OPTIM_STEP, body)

    async def save_weights(body: bytes) -> Any:
        message = read(messages.SaveWeights, body)
        return server.of_policy(message.model_id, message.seq_id, SAVE, body)

    async def save_for_sampler(body: bytes) -> Any:
        message = read(messages.SaveForSampler, body)
        if message.path is None and message.sampling_session_seq_id is None:
            raise InputError("path or sampling_session_seq_id: must be given")
        return server.of_policy(message.model_id, message.seq_id, SAVE_FOR_SAMPLER, body)

    async def unload(body: bytes) -> Any:
        return server.unload(read(messages.OfModel, body).model_id)

    async def save_external(body: bytes) -> Any:
        message = read(messages.SaveExternal, body)
        return server.of_policy(message.model_id, message.seq_id, SAVE_EXTERNAL, body)

    async def get_info(body: bytes) -> Any:
        return server.info(read(messages.OfModel, body).model_id)

    async def retrieve(body: bytes) -> Any:
        return await server.retrieve(read(messages.Retrieve, body).request_id)

    handlers = {
        "create_model": create_model,
        "load_weights": load_weights,
        "forward_backward": forward_backward,
        "optim_step": optim_step,
        "save_weights": save_weights,
        "save_weights_for_sampler": save_for_sampler,
        "save_weights_external": save_external,
        "unload_model": unload,
        "get_info": get_info,
        "retrieve_future": retrieve,
    }
    _post(app, handlers)


def _add_sampling_routes(app: FastAPI, server: Server) -> None:
    async def create(body: bytes) -> Any:
        name = server.sampler_of(read(messages.CreateSampler, body))
        return {"type": "create_sampling_session", "sampling_session_id": name}

    async def sample(body: bytes) -> Any:
        return server.sample(body)

    async def cancel(body: bytes) -> Any:
        server.sampling.cancel(read(messages.Retrieve, body).request_id)
        return {}

    handlers = {
        "create_sampling_session": create,
        "asample": sample,
        "cancel_future": cancel,
    }
    _post(app, handlers)

    @app.get(f"{API}/samplers/{{name}}")
    async def sampler(name: str) -> dict[str, Any]:
        found = server.ledger.sampler(name)
        if found is None:
            raise InputError(f"there is no sampler {name!r}")
        return {"sampler_id": name, "base_model": server.name, "model_path": found["path"] or None}


def _add_listing_routes(app: FastAPI, server: Server) -> None:
    def page(found: list[Any], limit: int, offset: int) -> tuple[list[Any], dict[str, int]]:
        limit, offset = max(0, limit), max(0, offset)
        return found[offset : offset + limit], {"offset": offset, "limit": limit, "total_count": len(found)}

    @app.get(f"{API}/training_runs")
    async def runs(limit: int = LIMIT, offset: int = 0) -> dict[str, Any]:
        found, cursor = page(server.ledger.policies(), limit, offset)
        return {"training_runs": [server.run_of(one) for one in found], "cursor": cursor}

    @app.get(f"{API}/training_runs/{{policy}}")
    async def run(policy: str) -> dict[str, Any]:
        return server.run_of(server.policy(policy))

    @app.get(f"{API}/training_runs/{{policy}}/checkpoints")
    async def checkpoints_of(policy: str) -> dict[str, Any]:
        return {"checkpoints": [shown(one) for one in server.ledger.checkpoints(server.policy(policy).id)]}

    @app.get(f"{API}/checkpoints")
    async def checkpoints(limit: int = LIMIT, offset: int = 0) -> dict[str, Any]:
        found, cursor = page(server.ledger.checkpoints(), limit, offset)
        return {"checkpoints": [shown(one) for one in found], "cursor": cursor}

    @app.get(f"{API}/sessions")
    async def sessions(limit: int = LIMIT, offset: int = 0) -> dict[str, Any]:
        found, _ = page(server.ledger.sessions(), limit, offset)
        return {"sessions": [session["id"] for session in found]}

    @app.get(f"{API}/sessions/{{session}}")
    async def session_of(session: str) -> dict[str, Any]:
        about = next((found["about"] for found in server.ledger.sessions() if found["id"] == session), None)
        if about is None:
            raise InputError(f"there is no session {session!r}")
        return {
            "training_run_ids": [found.id for found in server.ledger.policies() if found.session == session],
            "sampler_ids": [found["id"] for found in server.ledger.samplers() if found["session"] == session],
            "user_metadata": about["user_metadata"],
            "display_name": about["display_name"],
        }

    @app.get("/state")
    async def state() -> dict[str, Any]:
        return server.state()
