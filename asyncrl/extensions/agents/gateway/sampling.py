"""What passes between the API formats and the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.env.protocol import ToolCall
from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat_history import ChatHistory
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.tree import Call
from asyncrl.generation import Generated
from asyncrl.types import Decoding, Message, PlacedImage


class ContextTooLong(InputError):
    """The conversation leaves no room for an answer. Each API format words this in its own way, which clients match:
    `exchange.Format.too_long`.

    num_tokens: of the conversation. limit: of a conversation with its answer.
    """

    def __init__(self, num_tokens: int, limit: int) -> None:
        super().__init__(f"the conversation has {num_tokens} tokens and the limit with an answer is {limit}")
        self.num_tokens = num_tokens
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a client may ask for. Sizes in tokens."""

    max_tokens: int = 0
    """0 for as many as fit."""
    n: int = 1
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    seed: int | None = None
    decoding: Decoding | None = None
    """What no episode may ask for, see `gateway.decoding`."""
    parse_tools: bool = True
    ignored: tuple[str, ...] = ()
    """Parameters the client gave that have no effect here."""
    agent: str = ""
    """Sub-agent that asks."""
    caller: str = ""
    """Id of the tool call, or of the answer, that started its conversation."""
    thread: str = ""
    """The program's own id of the conversation."""
    caller_thread: str = ""
    """That of the conversation that started this one."""
    program: str = ""
    """Program and version that asks."""
    id_prefix: str = ""
    """How the answer's id begins in this API format."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template that the client gave."""
    ttl_s: float | None = None
    """Client's hint for the time until this conversation continues."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that is ready to be sampled."""

    id: str
    episode: Episode
    sampling: Sampling
    parent: Call | None
    context: np.ndarray
    """[N] int32, tokens after the parent's turn."""
    read_ids: np.ndarray
    """[L] int32, all tokens the engine reads."""
    images: tuple[PlacedImage, ...]
    """What some tokens of `context` stand for, counted from its first."""
    read_images: tuple[PlacedImage, ...]
    """The same of `read_ids`."""
    read_digest: bytes
    occurrence: int
    """How often this episode has asked with these tokens, this time included."""
    max_tokens: int
    max_tokens_from: str
    """The limit that `max_tokens` follows from, "" for the client's own."""
    root: int
    """Number of the conversation within the episode."""
    caller: Call | None
    """The call whose turn started this conversation, where the client says so or its words show it."""
    session: str
    """Calls of one conversation share a session, so that the router keeps them on one engine."""
    asked_after: int = 0
    """How many calls of the episode had been answered when it was asked."""
    history: ChatHistory | None = None
    """None for plain prompts."""
    prompt_text: str | None = None
    """The prompt of a plain text completion."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One answer."""

    generated: Generated
    text: str
    """What the model wrote, without the stop token or string."""
    finish_reason: str
    """"stop" or "length"."""
    stop_string: str = ""
    """The stop string that ended it."""
    content: str = ""
    """Text outside tool calls."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_ids: tuple[str, ...] = ()
    """Ids of the tool calls on the wire."""
    message: Message = field(default_factory=dict)
    """The assistant message as chat templates take it."""
