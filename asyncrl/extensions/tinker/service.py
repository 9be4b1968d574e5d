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

from asyncrl.errors import InputError
from asyncrl.extensions.tinker import messages, views
from asyncrl.extensions.tinker.checkpoint_routes import API, FILES, add_checkpoint_routes
from asyncrl.extensions.tinker.clients import KEY_PREFIX, ROLE, Client, ClientAccess
from asyncrl.extensions.tinker.engine import EngineKeeper
from asyncrl.extensions.tinker.links import Links
from asyncrl.extensions.tinker.listing_routes import add_listing_routes
from asyncrl.extensions.tinker.progress import WRITTEN_S, Progress
from asyncrl.extensions.tinker.rank_keeper import RankKeeper
from asyncrl.extensions.tinker.server import FinishedError, QuotaError, Server, TooManyError, read
from asyncrl.extensions.tinker.tables import (
    FORWARD_BACKWARD,
    LOAD,
    OPTIM_STEP,
    SAVE,
    SAVE_EXTERNAL,
    SAVE_FOR_SAMPLER,
)
from asyncrl.extensions.tinker.wire import MEDIA_TYPE, request_head
from asyncrl.services.http.app import OPEN_PATHS, caller_of, create_app

EXPIRY_CHECK_S = 60.0
MAX_BODY_BYTES = 64 * 2**20
UNEMBEDDING = (
    "this server trains adapters of attention and MLP layers and leaves the unembedding (train_unembed)"
)
Handler = Callable[[bytes, Client], Awaitable[Any]]
ClientOf = Callable[[Request], Client]


class KeyHeader:
    """ASGI middleware: the key that the SDK sends is the bearer token of everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"x-api-key", b"")
            if given.startswith(KEY_PREFIX.encode()):
                others = [one for one in scope["headers"] if one[0] not in (b"authorization", b"x-api-key")]
                token = (b"authorization", b"Bearer " + given.removeprefix(KEY_PREFIX.encode()))
                scope = {**scope, "headers": [*others, token]}
        await self.app(scope, receive, send)


def create_tinker_app(
    server: Server,
    access: ClientAccess,
    links: Links,
    progress: Progress,
    keeper: EngineKeeper | None,
    ranks: RankKeeper | None = None,
) -> FastAPI:
    """Return the app. links: to files. progress: for the monitor. keeper: of the engine; None where there is one.
    ranks: the processes that training needs, where it is several."""

    def client_of(request: Request) -> Client:
        return access.client(caller_of(request))

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

    async def tell() -> None:
        while True:
            await asyncio.to_thread(progress.write)
            await asyncio.sleep(WRITTEN_S)

    background: dict[str, Any] = {"training": server.training.run, "expiry": expire, "progress": tell}
    if keeper is not None:
        background["engine"] = keeper.run
    if ranks is not None:
        background["ranks"] = ranks.watch
    app = create_app(
        "asyncrl tinker",
        access,
        {"": (ROLE,), "/state": (), "/metrics": ()},
        max_body_bytes=MAX_BODY_BYTES,
        statuses={TooManyError: 429, FinishedError: 410, QuotaError: 403},
        background=background,
        lifespan=sampling,
        open_paths={*OPEN_PATHS, f"{API}/healthz", f"{API}/{FILES}"},
        binary_types=(MEDIA_TYPE,),
    )
    app.add_middleware(KeyHeader)
    _add_session_routes(app, server, client_of)
    _add_training_routes(app, server, client_of)
    _add_sampling_routes(app, server, client_of)
    add_listing_routes(app, server, client_of)
    add_checkpoint_routes(app, server, links, client_of)
    return app


def _post(app: FastAPI, client_of: ClientOf, handlers: Mapping[str, Handler]) -> None:
    """Answer `POST path` by what its handler makes of the body and its sender: a response, or an object for JSON."""

    def answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            found = await handler(await request.body(), client_of(request))
            return found if isinstance(found, Response) else JSONResponse(found)

        return answer

    for path, handler in handlers.items():
        app.add_api_route(f"{API}/{path}", answering(handler), methods=["POST"])


def _add_session_routes(app: FastAPI, server: Server, client_of: ClientOf) -> None:
    async def config(body: bytes, client: Client) -> Any:
        return {
            "parallel_fwdbwd_chunks": True,
            "proto_compress_fwdbwd": False,
            "sample_use_retrieve_futures": False,
        }

    async def dynamic_config(body: bytes, client: Client) -> Any:
        return {"sample_cancel_enabled": True}

    async def create_session(body: bytes, client: Client) -> Any:
        message = read(messages.CreateSession, body)
        name = uuid.uuid4().hex
        server.ledger.add_session(name, message.model_dump(), client.name)
        return {"type": "create_session", "session_id": name, "info_message": UNEMBEDDING}

    async def heartbeat(body: bytes, client: Client) -> Any:
        session = read(messages.Session, body).session_id
        server.need_session(session, client)
        server.need_unfinished(session)
        return {"type": "session_heartbeat"}

    async def telemetry(body: bytes, client: Client) -> Any:
        return {"status": "accepted"}

    async def weights_info(body: bytes, client: Client) -> Any:
        checkpoint = server.checkpoints.find(read(messages.Path, body).tinker_path, client.name)
        record = server.ledger.policy(checkpoint.policy)
        assert record is not None
        return views.weights_info(record)

    handlers = {
        "client/config": config,
        "client/dynamic_config": dynamic_config,
        "create_session": create_session,
        "session_heartbeat": heartbeat,
        "telemetry": telemetry,
        "weights_info": weights_info,
    }
    _post(app, client_of, handlers)

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
    async def finish(session: str, request: Request) -> dict[str, Any]:
        server.need_session(session, client_of(request))
        server.ledger.finish(session)
        server.unload_deserted()
        return {}


def _add_training_routes(app: FastAPI, server: Server, client_of: ClientOf) -> None:
    async def create_model(body: bytes, client: Client) -> Any:
        message = read(messages.CreateModel, body)
        return await server.creating(message.session_id, message.model_seq_id, body, client)

    async def load_weights(body: bytes, client: Client) -> Any:
        message = read(messages.LoadWeights, body)
        if message.model_id is not None and message.seq_id is not None:
            return await server.of_policy(message.model_id, message.seq_id, LOAD, body, client)
        if message.session_id is not None and message.model_seq_id is not None:
            return await server.creating(message.session_id, message.model_seq_id, body, client)
        raise InputError("model_id and seq_id, or session_id and model_seq_id: must be given")

    async def forward_backward(body: bytes, client: Client) -> Any:
        policy, number = request_head(body)
        return await server.of_policy(policy, number, FORWARD_BACKWARD, body, client)

    async def optim_step(body: bytes, client: Client) -> Any:
        message = read(messages.OptimStep, body)
        return await server.of_policy(message.model_id, message.seq_id, OPTIM_STEP, body, client)

    async def save_weights(body: bytes, client: Client) -> Any:
        message = read(messages.SaveWeights, body)
        return await server.of_policy(message.model_id, message.seq_id, SAVE, body, client)

    async def save_for_sampler(body: bytes, client: Client) -> Any:
        message = read(messages.SaveForSampler, body)
        if message.path is None and message.sampling_session_seq_id is None:
            raise InputError("path or sampling_session_seq_id: must be given")
        # The SDK counts this one on each time that it sends a request again, which is the same request nevertheless.
        body = message.model_dump_json(exclude={"sampling_session_seq_id"}).encode()
        return await server.of_policy(message.model_id, message.seq_id, SAVE_FOR_SAMPLER, body, client)

    async def unload(body: bytes, client: Client) -> Any:
        return server.unload(read(messages.OfModel, body).model_id, client)

    async def save_external(body: bytes, client: Client) -> Any:
        message = read(messages.SaveExternal, body)
        return await server.of_policy(message.model_id, message.seq_id, SAVE_EXTERNAL, body, client)

    async def get_info(body: bytes, client: Client) -> Any:
        return views.info(server, server.policy(read(messages.OfModel, body).model_id, client))

    async def retrieve(body: bytes, client: Client) -> Any:
        return await server.retrieve(read(messages.Retrieve, body).request_id, client)

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
    _post(app, client_of, handlers)


def _add_sampling_routes(app: FastAPI, server: Server, client_of: ClientOf) -> None:
    async def create(body: bytes, client: Client) -> Any:
        name = server.sampler_of(read(messages.CreateSampler, body), client)
        return {"type": "create_sampling_session", "sampling_session_id": name}

    async def sample(body: bytes, client: Client) -> Any:
        return await server.sample(body, client)

    async def cancel(body: bytes, client: Client) -> Any:
        server.cancel(read(messages.Retrieve, body).request_id, client)
        return {}

    handlers = {
        "create_sampling_session": create,
        "asample": sample,
        "cancel_future": cancel,
    }
    _post(app, client_of, handlers)

    @app.get(f"{API}/samplers/{{name}}")
    async def sampler(name: str, request: Request) -> dict[str, Any]:
        found = server.sampler(name, client_of(request))
        return {"sampler_id": name, "base_model": server.name, "model_path": found["path"] or None}
