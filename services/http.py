"""What every HTTP service shares: authentication, limits, error answers, health, and the serve loop.

A service calls `create_app`, adds its routes and hands the app to `serve`. Errors of the `AsyncRLError` tree
become `{"error": {"type", "message"}}` with a status of their own, so the client can raise them again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asyncrl.errors import (
    AsyncRLError,
    ConfigError,
    ConflictError,
    DeadlineError,
    EpisodeError,
    InfrastructureError,
    InputError,
    StaleError,
    UnavailableError,
)
from asyncrl.services.serving import is_loopback, serve

__all__ = ["STATUSES", "Guard", "add_hot_route", "create_app", "error_response", "is_loopback", "serve"]

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 32 * 1024
OPEN_PATHS = frozenset({"/healthz"})
"""Answered without a token."""

STATUSES: dict[type[Exception], int] = {
    ConfigError: 400,
    InputError: 400,
    StaleError: 409,
    ConflictError: 409,
    DeadlineError: 504,
    UnavailableError: 503,
    InfrastructureError: 502,
    EpisodeError: 422,
}

Background = Callable[[], Awaitable[None]]
HotHandler = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[], AbstractAsyncContextManager[None]]


def create_app(
    title: str,
    token: str = "",
    max_body_bytes: int = 16 * 2**20,
    statuses: Mapping[type[Exception], int] | None = None,
    background: Mapping[str, Background] | None = None,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """A FastAPI app with the shared plumbing and `GET /healthz`.

    token: bearer token that every route but `/healthz` asks for; empty asks for none.
    max_body_bytes: larger request bodies are answered 413.
    statuses: statuses of the service's own errors, beside `STATUSES`; the nearest base class counts.
    background: named coroutines that run as long as the service; when one ends, the process exits with 1.
    lifespan: context the service opens at its start and closes at its end, around the background tasks.

    `app.state.stopping` is an `asyncio.Event` set when shutdown begins: routes that wait must watch it.
    """
    app = FastAPI(title=title, lifespan=_run_with(background or {}, lifespan), redirect_slashes=False)
    app.state.token = token
    app.state.failure = None
    app.state.stopping = asyncio.Event()
    app.state.request_exit = lambda: None
    table = STATUSES | dict(statuses or {})

    async def known_error(request: Request, error: Exception) -> JSONResponse:
        return error_response(error, table)

    app.add_exception_handler(AsyncRLError, known_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)
    app.state.hot_routes = {}
    app.add_middleware(
        Guard, token=token, max_body_bytes=max_body_bytes, hot_routes=app.state.hot_routes, statuses=table
    )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answers as long as the service can serve."""
        return {"status": "ok", "service": title}

    return app


def error_response(error: Exception, statuses: Mapping[type[Exception], int] = STATUSES) -> JSONResponse:
    """The JSON answer of an error, with the status of its nearest listed base class."""
    status = next((statuses[kind] for kind in type(error).__mro__ if kind in statuses), 500)
    # Clients know the shared classes only, so a service's own error goes by its nearest shared base.
    kind = next((k.__name__ for k in type(error).__mro__ if k.__module__ == AsyncRLError.__module__), "Error")
    body: dict[str, Any] = {"type": kind, "message": str(error)}
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        body["retry_after_s"] = retry_after_s
        headers["Retry-After"] = str(max(1, round(retry_after_s)))
    return JSONResponse({"error": _encodable(body)}, status, headers)


def add_hot_route(app: FastAPI, path: str, handler: HotHandler) -> None:
    """Answer `POST path` by `handler` straight behind the guard: no routing, no parsing, a third of the time.

    Such a route does not appear in the OpenAPI document. Other methods on `path` are answered 405.
    """
    app.state.hot_routes[path] = handler


class Guard:
    """ASGI middleware in front of every route: header limit, bearer token, body limit, then the hot routes."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        max_body_bytes: int,
        hot_routes: Mapping[str, HotHandler],
        statuses: Mapping[type[Exception], int],
    ) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.hot_routes = hot_routes
        self.statuses = statuses
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        authorization, content_length, header_bytes = b"", 0, 0
        for name, value in scope["headers"]:
            header_bytes += len(name) + len(value)
            if name == b"content-length":
                content_length = int(value)
            elif name == b"authorization":
                authorization = value
        refusal = self._refusal(scope["path"], authorization, content_length, header_bytes)
        if refusal is not None:
            await refusal(scope, receive, send)
        elif (handler := self.hot_routes.get(scope["path"])) is not None:
            response = await self._answer(handler, Request(scope, self._limited(receive)))
            await response(scope, receive, send)
        else:
            await self.app(scope, self._limited(receive), send)

    async def _answer(self, handler: HotHandler, request: Request) -> Response:
        if request.method != "POST":
            return _refuse(405, "only POST is allowed", {"Allow": "POST"})
        try:
            return await handler(request)
        except AsyncRLError as error:
            return error_response(error, self.statuses)
        except HTTPException as error:
            return _refuse(error.status_code, error.detail)

    def _refusal(
        self, path: str, given: bytes, content_length: int, header_bytes: int
    ) -> JSONResponse | None:
        if header_bytes > MAX_HEADER_BYTES:
            return _refuse(431, f"headers must have at most {MAX_HEADER_BYTES} bytes")
        if self._expected and path not in OPEN_PATHS and not hmac.compare_digest(given, self._expected):
            return _refuse(401, "a bearer token is required", {"WWW-Authenticate": "Bearer"})
        if content_length > self.max_body_bytes:
            return _refuse(413, f"body must have at most {self.max_body_bytes} bytes, got {content_length}")
        return None

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_body_bytes:
                raise HTTPException(413, f"body must have at most {self.max_body_bytes} bytes")
            return message

        return limited


def _run_with(background: Mapping[str, Background], lifespan: Lifespan | None) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def context(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if lifespan is not None:
                await stack.enter_async_context(lifespan())
            tasks = [asyncio.create_task(_watch(app, name, run)) for name, run in background.items()]
            try:
                yield
            finally:
                app.state.stopping.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    return context


async def _watch(app: FastAPI, name: str, run: Background) -> None:
    try:
        await run()
        app.state.failure = RuntimeError(f"background task {name!r} ended")
    except Exception as error:
        log.exception("background task %r of %s died", name, app.title)
        app.state.failure = error
    app.state.request_exit()


def _refuse(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    body = {"error": {"type": "HTTPError", "message": message}}
    # The body was not read, so the connection cannot carry another request.
    return JSONResponse(body, status, {"Connection": "close"} | (headers or {}))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    body = {"type": "HTTPError", "message": str(error.detail)}
    return JSONResponse({"error": body}, error.status_code, error.headers)


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    # The value itself is left out: it may be huge, secret or not encodable.
    wrong = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()[:8]]
    return JSONResponse({"error": _encodable({"type": "InputError", "message": "; ".join(wrong)})}, 400)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    message = f"unexpected {type(error).__name__}; see the service's log"
    return JSONResponse({"error": {"type": "InternalError", "message": message}}, 500)


def _encodable(body: dict[str, Any]) -> dict[str, Any]:
    """Replaces lone surrogates, which a message may quote and UTF-8 cannot carry."""
    return {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in body.items()
    }
