"""What every API format reads from a request and writes from its answers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat_history import ChatHistory
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.sampling import Prepared, Sampled, Sampling
from asyncrl.extensions.agents.gateway.wire_tools import WireTools

MODEL = "policy"
"""The one model a gateway serves; whatever name a client asks for is answered under that name."""
Event = tuple[str, dict[str, Any] | str]
"""Name and data of a server-sent event; an empty name is left out, data that is text is sent as it is."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request, read and checked."""

    body: dict[str, Any]
    sampling: Sampling
    history: ChatHistory | None = None
    prompts: tuple[str | list[int], ...] = ()
    """What a plain completion continues, where there is no conversation; several only where no episode is recorded."""
    stream: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""
    items: tuple[dict[str, Any], ...] = ()
    """All items of a `/v1/responses` conversation so far."""
    tools: WireTools = field(default_factory=WireTools)
    """What its client calls the tools that the policy sees."""

    @property
    def model(self) -> str:
        return str(self.body.get("model") or MODEL)

    @property
    def live(self) -> bool:
        """Whether text can be streamed while it grows: not while it may turn out to be a tool call, nor for several
        answers at once, nor where a turn is sampled whole."""
        tools = self.history is not None and self.history.tools and self.sampling.parse_tools
        whole = self.sampling.decoding is not None and self.sampling.decoding.whole
        return self.stream and self.sampling.n == 1 and not tools and not whole


@dataclass(frozen=True, slots=True)
class Done:
    """A request with its answers."""

    request: ApiRequest
    prepared: Prepared
    answers: list[Sampled]
    renderer: ChatRenderer

    @property
    def prompt_tokens(self) -> int:
        return len(self.prepared.read_ids)

    @property
    def completion_tokens(self) -> int:
        return sum(len(a.generated.token_ids) for a in self.answers)

    @property
    def cached_tokens(self) -> int:
        return self.answers[0].generated.cached_tokens


class Stream(Protocol):
    """Writes the events of one streamed answer, in this order."""

    def opening(self) -> list[Event]: ...
    def text(self, delta: str) -> list[Event]: ...

    def ping(self) -> list[Event]:
        """What says that the answer is still on its way; no events for a comment, which every client skips."""
        ...

    def closing(self, done: Done) -> list[Event]: ...
    def failure(self, status: int, message: str) -> list[Event]: ...


class Format(Protocol):
    """One API format."""

    id_prefix: str
    """Prefix of the ids of its answers."""

    def read(self, body: dict[str, Any], episode: Episode) -> ApiRequest:
        """Check a request. Raises `InputError` naming the field."""
        ...

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        """The body of the whole answer."""
        ...

    def stream(self, request: ApiRequest, prepared: Prepared, episode: Episode) -> Stream:
        """The writer of a streamed answer."""
        ...

    def error(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        """The body of a refusal."""
        ...

    def too_long(self, num_tokens: int, limit: int) -> str:
        """The message for a context that leaves no room for an answer, in the words that clients look for."""
        ...


COMMENT = b": still sampling\n\n"
"""Bytes of a server-sent stream that are no event."""


def encode_event(event: Event) -> bytes:
    """A server-sent event on the wire."""
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def flag(body: dict[str, Any], name: str) -> bool:
    """An optional true or false. Raises `InputError`."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{name}: must be true or false, got {str(value)[:100]!r}")
    return bool(value)


def openai_error(status: int, message: str, code: str = "") -> dict[str, Any]:
    """A refusal as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code or None}}


def openai_too_long(num_tokens: int, limit: int) -> str:
    """What OpenAI says of a context that leaves no room for an answer, with the code for clients that read the text."""
    return (
        f"This model's maximum context length is {limit} tokens. However, you requested {num_tokens + 1} tokens "
        f"({num_tokens} in the messages, 1 in the completion). Please reduce the length of the messages or completion. "
        "(context_length_exceeded)"
    )


def arguments_text(arguments: dict[str, Any]) -> str:
    """Arguments of a tool call as OpenAI's formats carry them."""
    return json.dumps(arguments)
