"""What every HTTP service shares: who may call it, limits, error answers, health, and the serve loop.

A service calls `create_app`, adds its routes and passes the app to `serve`. Errors of the `AsyncRLError` tree become
`{"error": {"type", "message"}}` with their own status, so that the client can raise them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asyncrl.credentials import Access, Caller, allowed
from asyncrl.disk import FAULTS, as_told
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
from asyncrl.http_checks import MSGPACK, BodyCheck, Hosts, Refusal, media_type, refuse_headers, wrong_fields
from asyncrl.services.http.serving import serve

__all__ = [
    "STATUSES",
    "AccessGuard",
    "RequestGuard",
    "add_hot_route",
    "caller_of",
    "create_app",
    "error_response",
    "serve",
]

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz"})
"""Answered without a token."""
ALL_ROLES = frozenset({"run", "trainer", "worker", "gateway", "engine", "env", "guest", "old_policy"})
"""All roles that a run's callers have."""
_CALLER = "asyncrl.caller"
POLICY_VIOLATION = 1008
"""WebSocket close code of a refused connection."""
LINGER_S = 5.0
LINGER_BYTES = 64 * 2**20
"""How long, and how much, of a body that is not wanted is read before its connection is closed."""

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
    access: Access,
    roles: Mapping[str, Collection[str]] | None = None,
    max_body_bytes: int = 16 * 2**20,
    statuses: Mapping[type[Exception], int] | None = None,
    background: Mapping[str, Background] | None = None,
    lifespan: Lifespan | None = None,
    open_paths: Collection[str] = OPEN_PATHS,
    larger_bodies: Mapping[str, int] | None = None,
    binary_types: Collection[str] = (),
) -> FastAPI:
    """A FastAPI app with the shared plumbing and `GET /healthz`.

    access: identifies callers by the bearer token that every route but `/healthz` requires.
    roles: who may call "METHOD PATH" or "PATH" besides the role `run`; "" for the routes that are not listed.
    max_body_bytes: larger request bodies are answered 413.
    statuses: statuses of the service's own errors, beside `STATUSES`; the nearest base class counts.
    background: named coroutines that run as long as the service does; if one ends, the process exits with 1.
    lifespan: context that the service enters at its start and leaves at its end, around the background tasks.
    open_paths: answered without a token.
    larger_bodies: by path, what takes larger ones than `max_body_bytes`, in bytes.
    binary_types: content types of bodies besides JSON and msgpack, which the routes read themselves. A web page must
    not be able to send them without a preflight request.

    `app.state.stopping` is an `asyncio.Event` set when shutdown begins: routes that wait must watch it.
    """
    app = FastAPI(title=title, lifespan=_run_with(background or {}, lifespan), redirect_slashes=False)
    app.state.hosts = Hosts()
    app.state.failure = None
    app.state.stopping = asyncio.Event()
    app.state.request_exit = lambda: None
    table = STATUSES | dict(statuses or {})

    async def known_error(request: Request, error: Exception) -> JSONResponse:
        return error_response(as_told(error), table)

    for kind in (AsyncRLError, *FAULTS):
        app.add_exception_handler(kind, known_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)
    app.state.hot_routes = {}
    app.add_middleware(
        AccessGuard,
        access=access,
        roles=roles or {},
        hot_routes=app.state.hot_routes,
        statuses=table,
        open_paths=frozenset(open_paths),
    )
    app.add_middleware(
        RequestGuard,
        hosts=app.state.hosts,
        max_body_bytes=max_body_bytes,
        larger_bodies=larger_bodies,
        binary_types=frozenset(binary_types),
    )

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answers as long as the service can serve."""
        return {"status": "ok", "service": title}

    return app


def error_response(error: Exception, statuses: Mapping[type[Exception], int] = STATUSES) -> JSONResponse:
    """Return the JSON answer to an error, with the status of its nearest listed base class."""
    status = next((statuses[kind] for kind in type(error).__mro__ if kind in statuses), 500)
    # Clients know the shared classes only, so a service's own error is sent as its nearest shared base.
    kind = next((k.__name__ for k in type(error).__mro__ if k.__module__ == AsyncRLError.__module__), "Error")
    body: dict[str, Any] = {"type": kind, "message": str(error)}
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        body["retry_after_s"] = retry_after_s
        headers["Retry-After"] = str(max(1, round(retry_after_s)))
    return JSONResponse({"error": _encodable(body)}, status, headers)


def add_hot_route(app: FastAPI, path: str, handler: HotHandler) -> None:
    """Answer `POST path` with `handler` right behind `AccessGuard`: no routing, no parsing, a third of the time.

    Such a route does not appear in the OpenAPI document. Other methods on `path` are answered 405.
    """
    app.state.hot_routes[path] = handler


def caller_of(request: Request) -> Caller:
    """Return the caller of a request that `AccessGuard` has accepted."""
    return request.scope[_CALLER]


class RequestGuard:
    """ASGI middleware before everything else. Refuses foreign hosts, web pages, wrong types, large and slow bodies."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Hosts,
        max_body_bytes: int,
        larger_bodies: Mapping[str, int] | None = None,
        binary_types: Collection[str] = (),
    ) -> None:
        self.app = app
        self.hosts = hosts
        self.binary_types = frozenset(binary_types)
        self.max_body_bytes = max_body_bytes
        self.larger_bodies = larger_bodies or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            refusal = refuse_headers(scope["headers"], self.hosts)
            await (self.app(scope, receive, send) if refusal is None else _close(receive, send))
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = refuse_headers(scope["headers"], self.hosts, self.binary_types) or self._too_long(scope)
        unread = _Unread(scope, receive)
        if refusal is None:
            await self.app(scope, self._checked(scope, receive, unread), unread.lingering(send))
        else:
            await _refuse(*refusal)(scope, receive, unread.lingering(send))

    def _too_long(self, scope: Scope) -> Refusal | None:
        length = next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
        if length > (most := self._most(scope)):
            return Refusal(413, f"body must have at most {most} bytes, got {length}")
        return None

    def _most(self, scope: Scope) -> int:
        return self.larger_bodies.get(scope["path"], self.max_body_bytes)

    def _checked(self, scope: Scope, receive: Receive, unread: _Unread) -> Receive:
        binary = {MSGPACK, *self.binary_types}
        packed = any(n == b"content-type" and media_type(v) in binary for n, v in scope["headers"])
        check: BodyCheck | None = None
        whole = False

        async def checked() -> Message:
            nonlocal check, whole
            if whole:
                return await receive()
            # The sender's time starts when the service begins to read.
            check = check or BodyCheck(self._most(scope), not packed)
            message = await check.received(receive)
            if message is None:
                raise _http_exception(check.late())
            whole = not message.get("more_body", False)
            unread.is_left = not whole
            if (refusal := check.add(message.get("body", b""))) is not None:
                raise _http_exception(refusal)
            return message

        return checked


class _Unread:
    """What a request's body still holds when it is answered, as one that is too long does.

    A connection that is closed while data waits to be read is reset, and the client never sees the answer. So what
    comes is read and thrown away for a while before the connection is closed.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        names = {name for name, _ in scope["headers"]}
        # A client that waits for "100 Continue" has sent nothing yet, and must not be told to.
        self.is_left = bool(names & {b"content-length", b"transfer-encoding"}) and b"expect" not in names
        self._receive = receive

    def lingering(self, send: Send) -> Send:
        """Return `send`, which reads what is left before it ends an answer."""
        is_late = False

        async def sent(message: Message) -> None:
            nonlocal is_late
            if message["type"] == "http.response.start":
                is_late = message["status"] == 408
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not (is_end and self.is_left) or is_late:
                await send(message)
                return
            await send({**message, "more_body": True})
            await self._discard()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return sent

    async def _discard(self) -> None:
        self.is_left = False
        discarded = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while discarded < LINGER_BYTES:
                    message = await self._receive()
                    if not message.get("more_body", False):
                        return
                    discarded += len(message.get("body", b""))


class AccessGuard:
    """ASGI middleware behind `RequestGuard`: identifies the caller, checks its role, then answers the hot routes."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        roles: Mapping[str, Collection[str]],
        hot_routes: Mapping[str, HotHandler],
        statuses: Mapping[type[Exception], int],
        open_paths: frozenset[str],
    ) -> None:
        self.app = app
        self.open_paths = open_paths
        self.access = access
        self.roles = roles
        self.hot_routes = hot_routes
        self.statuses = statuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = None if scope["path"] in self.open_paths else self._refusal(scope)
        if refusal is not None:
            answer = _close(receive, send) if scope["type"] == "websocket" else refusal(scope, receive, send)
            await answer
        elif scope["type"] == "http" and (handler := self.hot_routes.get(scope["path"])) is not None:
            response = await self._answer(handler, Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, handler: HotHandler, request: Request) -> Response:
        if request.method != "POST":
            return _refuse(405, "only POST is allowed", {"Allow": "POST"})
        try:
            return await handler(request)
        except (AsyncRLError, *FAULTS) as error:
            return error_response(as_told(error), self.statuses)
        except HTTPException as error:
            return _refuse(error.status_code, error.detail)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        caller = self.access.caller(given)
        if caller is None:
            message = "a bearer token of this service's run is required, such as the one in runs/NAME/token"
            return _refuse(401, message, {"WWW-Authenticate": "Bearer"})
        if caller.role != "run" and caller.role not in allowed(
            self.roles, scope.get("method", "GET"), scope["path"]
        ):
            return _refuse(403, f"{scope['path'][:64]}: not for {caller}", kind="ConfigError")
        scope[_CALLER] = caller
        return None


async def _close(receive: Receive, send: Send) -> None:
    """Refuse a WebSocket before it is accepted; its client sees status 403."""
    await receive()
    await send({"type": "websocket.close", "code": POLICY_VIOLATION})


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


def _http_exception(refusal: Refusal) -> HTTPException:
    return HTTPException(refusal.status, refusal.message, {"Connection": "close"})


def _refuse(
    status: int, message: str, headers: dict[str, str] | None = None, kind: str = "HTTPError"
) -> JSONResponse:
    body = {"error": {"type": kind, "message": message}}
    # The body was not read, so the connection cannot carry another request.
    return JSONResponse(body, status, {"Connection": "close"} | (headers or {}))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    body = {"type": "HTTPError", "message": str(error.detail)}
    return JSONResponse({"error": body}, error.status_code, error.headers)


async def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse(
        {"error": _encodable({"type": "InputError", "message": wrong_fields(error.errors())})}, 400
    )


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    message = f"unexpected {type(error).__name__}; see the service's log"
    return JSONResponse({"error": {"type": "InternalError", "message": message}}, 500)


def _encodable(body: dict[str, Any]) -> dict[str, Any]:
    """Replaces lone surrogates, which a message may quote but UTF-8 cannot encode."""
    return {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in body.items()
    }
