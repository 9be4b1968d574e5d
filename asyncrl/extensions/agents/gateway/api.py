"""The routes agents call, straight on ASGI: `/v1/...` with an episode's key instead of the service's token.

A call whose client disconnects before its answer is cancelled and not recorded: nothing depends on it yet, and the SDKs
send such calls again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from asyncrl.errors import AsyncRLError, InfrastructureError, InputError, UnavailableError
from asyncrl.extensions.agents.gateway.body import read_body
from asyncrl.extensions.agents.gateway.chat import ChatFormat
from asyncrl.extensions.agents.gateway.client_headers import read_client_headers
from asyncrl.extensions.agents.gateway.completions import CompletionFormat
from asyncrl.extensions.agents.gateway.exchange import (
    COMMENT,
    MODEL,
    ApiRequest,
    Done,
    Event,
    Format,
    Stream,
    encode_event,
)
from asyncrl.extensions.agents.gateway.messages import MessagesFormat, read_messages_history
from asyncrl.extensions.agents.gateway.open_episodes import Episodes
from asyncrl.extensions.agents.gateway.prefixes import render_whole
from asyncrl.extensions.agents.gateway.recorded_episode import Episode, EpisodeEnded
from asyncrl.extensions.agents.gateway.responses import ResponsesFormat
from asyncrl.extensions.agents.gateway.sampling import ContextTooLong, Prepared, Sampled
from asyncrl.extensions.agents.gateway.shown_parts import shown_parts
from asyncrl.together import together

T = TypeVar("T")
log = logging.getLogger(__name__)

AGENT_HEADER = b"x-asyncrl-agent"
"""Name of the sub-agent that asks."""
CALLER_HEADER = b"x-asyncrl-caller"
"""Id of the tool call that started the sub-agent that asks, or of the answer that holds it."""
TTL_HEADER = b"x-asyncrl-ttl-s"
"""Seconds until the conversation continues, if the agent knows."""
PING_S = 15.0
"""Codex, Claude Code and opencode hang up after 300 s without a sign, and ask again for ever; proxies do so earlier."""
REWARD_PATH = "/asyncrl/v1/reward"
FORMATS: dict[str, Format] = {
    "/v1/chat/completions": ChatFormat(),
    "/v1/completions": CompletionFormat(),
    "/v1/responses": ResponsesFormat(),
    "/v1/messages": MessagesFormat(),
}


class BrokenAnswer(Exception):
    """An answer whose head has been sent cannot be finished; the server closes the connection."""


class ClientGone(Exception):
    """The client closed its connection before the answer."""


class AgentApi:
    """ASGI middleware: answers `/v1/...` and the episode's reward route, passes on everything else."""

    def __init__(self, app: ASGIApp, episodes: Episodes, max_body_bytes: int, ping_s: float = 0.0) -> None:
        """ping_s: the longest that an answer which is being sampled stays silent; 0 for `PING_S`."""
        self.app = app
        self.ping_s = ping_s or PING_S
        self.episodes = episodes
        self.sampler = episodes.sampler
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path.startswith("/v1/") or path == REWARD_PATH):
            await self.app(scope, receive, send)
            return
        call = _Call(self, scope, receive, send)
        try:
            await call.answer()
        except ClientGone:
            if call.episode is not None:
                call.episode.counters["undelivered_calls"] += 1
        except ContextTooLong as error:
            message = call.format.too_long(error.num_tokens, error.limit)
            await call.refuse(400, message, "context_length_exceeded")
        except AsyncRLError as error:
            await call.refuse(_status(error), str(error))
        except HTTPException as error:
            await call.refuse(error.status_code, error.detail)
        except Exception as error:
            log.exception("%s failed", path)
            await call.refuse(500, f"unexpected {type(error).__name__}; see the gateway's log")


class _Call:
    """One HTTP request of an agent."""

    def __init__(self, api: AgentApi, scope: Scope, receive: Receive, send: Send) -> None:
        self.api = api
        self.path = scope["path"]
        self.method = scope["method"]
        self.headers = dict(scope["headers"])
        self.receive = receive
        self.send = send
        self.format = FORMATS.get(self.path, FORMATS["/v1/chat/completions"])
        if self.path.startswith("/v1/messages"):
            self.format = FORMATS["/v1/messages"]
        self.episode: Episode | None = None
        self.stream: Stream | None = None
        """Set once a streamed answer has begun: what goes wrong then is an event."""
        self.begun = False
        """Whether the head of a whole answer has been sent, with its status, to keep the connection alive."""
        self.unshown: tuple[str, ...] = ()
        """Parts of the messages that the model cannot read."""

    async def answer(self) -> None:
        if self.path == REWARD_PATH:
            await self._reward()
            return
        episode = self.episode = self.api.episodes.by_key(self._key())
        if episode is None:
            await self.refuse(401, "no open episode has this API key", "invalid_api_key")
        elif self.path.startswith("/v1/models"):
            await self.reply(200, _models(self.path, await self.api.sampler.context_limit(episode)))
        elif self.method != "POST":
            await self.refuse(405, "only POST is allowed")
        elif self.path == "/v1/messages/count_tokens":
            history = read_messages_history(await self._shown_body())
            ids = render_whole(self.api.sampler.renderer, history)
            await self.reply(200, {"input_tokens": len(ids)})
        elif self.path in FORMATS:
            await self._complete(episode, self._hinted(self.format.read(await self._shown_body(), episode)))
        else:
            await self.refuse(404, f"no route {self.path}; there are {', '.join(FORMATS)} and /v1/models")

    async def _reward(self) -> None:
        """Take a reward from the process that runs the agent. The agent itself may be written by the policy."""
        episode = self.api.episodes.by_reward_key(self._key())
        if episode is not None and self.method == "POST":
            episode.add_reward(await self._body())
            await self.reply(200, {"reward": episode.describe()["reward"]})
        elif episode is not None:
            await self.refuse(405, "only POST is allowed")
        elif self.api.episodes.by_key(self._key()) is not None:
            await self.refuse(403, "an agent's key cannot report rewards; use the episode's reward_key")
        else:
            await self.refuse(401, "no open episode has this reward key", "invalid_api_key")

    async def _complete(self, episode: Episode, request: ApiRequest) -> None:
        sampler = self.api.sampler
        if request.history is not None:
            prepared = [await sampler.prepare_chat(episode, request.history, request.sampling)]
        else:
            prepared = [await sampler.prepare_prompt(episode, p, request.sampling) for p in request.prompts]
        if request.stream:
            await self._stream(episode, request, prepared[0])
            return
        answered = await self._unless_gone(
            together(sampler.sample(one) for one in prepared), self._keep_alive
        )
        bodies = []
        for one, answers in zip(prepared, answered, strict=True):
            sampler.record(one, answers)
            bodies.append(self.format.answer(Done(request, one, answers, sampler.renderer), episode))
        await self.reply(200, bodies[0] if len(bodies) == 1 else CompletionFormat.merge(bodies))

    async def _stream(self, episode: Episode, request: ApiRequest, prepared: Prepared) -> None:
        sampler = self.api.sampler
        stream = self.format.stream(request, prepared, episode)
        grown: asyncio.Queue[str] = asyncio.Queue()
        live = request.live and sampler.reading(request.sampling.template).split is None

        beginning = asyncio.Lock()

        async def begin() -> None:
            async with beginning:
                if self.stream is None:
                    await self._begin(stream)

        async def ping() -> None:
            await begin()
            await self._events(stream.ping(), comment=True)

        async def sample() -> list[Sampled]:
            running = asyncio.ensure_future(sampler.sample(prepared, grown.put_nowait if live else None))
            running.add_done_callback(lambda _: grown.put_nowait(""))
            try:
                while delta := await grown.get():
                    await begin()
                    await self._events(stream.text(delta))
                return await running
            finally:
                running.cancel()

        answers = await self._unless_gone(sample(), ping)
        sampler.record(prepared, answers)
        await begin()
        await self._events(stream.closing(Done(request, prepared, answers, sampler.renderer)), last=True)

    async def _begin(self, stream: Stream) -> None:
        """Send the head of a streamed answer, once there is something to say.

        Until then a failure is a status, which clients ask again; inside a stream many take it for the end.
        """
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        self.stream = stream
        await self._events(stream.opening())

    async def _unless_gone(
        self, work: Coroutine[Any, Any, T], silent: Callable[[], Coroutine[Any, Any, None]]
    ) -> T:
        """Await `work`, and `silent` whenever it has lasted so long again.

        Raises `ClientGone`, and ends the work, when the client disconnects first.
        """
        # The body has been read, so the next message is the end of the connection.
        gone = asyncio.ensure_future(self.receive())
        running = asyncio.ensure_future(work)
        try:
            waited: set[asyncio.Future[Any]] = {running, gone}
            while not (
                await asyncio.wait(waited, timeout=self.api.ping_s, return_when=asyncio.FIRST_COMPLETED)
            )[0]:
                await silent()
            if not running.done():
                raise ClientGone
            return running.result()
        finally:
            gone.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait({running})

    async def _keep_alive(self) -> None:
        """Send a blank, which may stand before JSON, and before the first one the head of the answer."""
        if not self.begun:
            self.begun = True
            headers = [(b"content-type", b"application/json")]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.send({"type": "http.response.body", "body": b" ", "more_body": True})

    async def reply(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body, separators=(",", ":")).encode()
        if self.begun:
            await self.send({"type": "http.response.body", "body": raw})
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": raw})

    async def refuse(self, status: int, message: str, code: str = "") -> None:
        if self.stream is not None:
            await self._events(self.stream.failure(status, message), last=True)
            return
        if self.begun and status >= 500:
            # The head has said 200. A connection that breaks is asked again, as this status would be.
            raise BrokenAnswer(message)
        if self.episode is not None:
            self.episode.refusal = f"{self.path}: {status}: {message}"[:500]
        # Messages may quote what a client sent; UTF-8 cannot carry half a surrogate pair.
        message = message.encode("utf-8", "replace").decode()
        await self.reply(status, self.format.error(status, message, code))

    async def _events(self, events: list[Event], last: bool = False, comment: bool = False) -> None:
        """Send events; `comment`: a comment where there are none."""
        body = b"".join(encode_event(event) for event in events) or (COMMENT if comment else b"")
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    def _hinted(self, request: ApiRequest) -> ApiRequest:
        own = None if self.episode is None else self.episode.spec.headers
        client = read_client_headers(self.headers, own)
        agent = self.headers.get(AGENT_HEADER, b"").decode("latin-1")[:200] or client.agent
        ttl_s = _seconds(self.headers.get(TTL_HEADER))
        caller = self.headers.get(CALLER_HEADER, b"").decode("latin-1")[:200]
        hints: dict[str, Any] = {"agent": agent, "caller": caller, "ttl_s": ttl_s}
        hints |= {"thread": client.thread, "caller_thread": client.caller_thread, "program": client.program}
        hints |= {"id_prefix": self.format.id_prefix, "ignored": (*request.sampling.ignored, *self.unshown)}
        return replace(request, sampling=replace(request.sampling, **hints))

    def _key(self) -> str:
        bearer = self.headers.get(b"authorization", b"").decode("latin-1")
        return (
            bearer[7:]
            if bearer[:7].lower() == "bearer "
            else self.headers.get(b"x-api-key", b"").decode("latin-1")
        )

    async def _shown_body(self) -> dict[str, Any]:
        """The body of a request, with texts for the parts of messages that the model cannot read."""
        body, self.unshown = shown_parts(
            await self._body(), self.api.sampler.renderer.image_processor is not None
        )
        return body

    async def _body(self) -> dict[str, Any]:
        chunks, size, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self.api.max_body_bytes:
                raise InputError(f"body: must have at most {self.api.max_body_bytes} bytes")
            more = message.get("more_body", False)
        return read_body(b"".join(chunks))


_STATUSES: list[tuple[type[AsyncRLError], int]] = [
    # SDKs repeat calls that are answered 409 or 5xx, which is useless for an episode that has ended.
    (EpisodeEnded, 403),
    (InputError, 400),
    (InfrastructureError, 502),
    (UnavailableError, 503),
]


def _status(error: AsyncRLError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def _models(path: str, max_model_len: int) -> dict[str, Any]:
    """The list of models, or one of them, for clients of either API: every name is the policy.

    max_model_len: longest context with its answer, in tokens, under the name that vLLM has for it.
    """
    name = path.removeprefix("/v1/models").strip("/") or MODEL
    model = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "asyncrl",
        "max_model_len": max_model_len,
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
    if path.removeprefix("/v1/models").strip("/"):
        return model
    return {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}


def _seconds(raw: bytes | None) -> float | None:
    if raw is None:
        return None
    try:
        value = float(raw)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86_400:
        raise InputError(f"{TTL_HEADER.decode()}: must be 0 to 86400 seconds, got {raw[:50]!r}")
    return value
