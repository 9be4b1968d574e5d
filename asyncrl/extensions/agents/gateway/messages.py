"""Anthropic's `/v1/messages`."""

from __future__ import annotations

from typing import Any

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat import read_sampling
from asyncrl.extensions.agents.gateway.chat_history import ChatHistory, content_of, read_chat_history, text_of
from asyncrl.extensions.agents.gateway.decoding import read_decoding, read_format
from asyncrl.extensions.agents.gateway.exchange import ApiRequest, Done, Event, arguments_text, flag
from asyncrl.extensions.agents.gateway.fields import ignored, integer, stops
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.sampler import call_id
from asyncrl.extensions.agents.gateway.sampling import Prepared, Sampled
from asyncrl.extensions.agents.gateway.wire_tools import WireTools, read_messages_tools

_IGNORED: dict[str, tuple[Any, ...]] = {
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "auto"}, {"type": "none"}),
}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}
_THOUGHTS = ("thinking", "redacted_thinking")


class MessagesFormat:
    """Implements `exchange.Format`."""

    id_prefix = "msg_"

    def read(self, body: dict[str, Any], episode: Episode) -> ApiRequest:
        limit = integer(body, "max_tokens", 0, 1)
        if not limit:
            raise InputError("max_tokens: must be given")
        choice = body.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, dict) else choice
        common = {"temperature": body.get("temperature"), "tool_choice": kind}
        common["stop"] = list(stops(body.get("stop_sequences"), "stop_sequences")) or None
        config = body.get("output_config") or {}
        if not isinstance(config, dict):
            raise InputError(f"output_config: must be an object, got {str(config)[:100]!r}")
        wanted = body.get("tools") if kind != "none" else None
        schema, plain = read_format(config.get("format"), "output_config.format", False, episode, wanted)
        decoding, dropped = read_decoding(body, episode, schema)
        tools = read_messages_tools(body.get("tools"))
        unused = (*dropped, *plain, *tools.dropped, *ignored(body, _IGNORED))
        common["chat_template_kwargs"] = body.get("chat_template_kwargs")
        sampling = read_sampling(common, episode, limit, unused, decoding)
        history = _history(body, tools)
        return ApiRequest(body, sampling, history, stream=flag(body, "stream"), tools=tools)

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        sampled = done.answers[0]
        message = _message(done.request, done.prepared)
        message["content"] = _blocks(sampled)
        message["usage"] = _usage(done)
        return message | _stop(sampled)

    def stream(self, request: ApiRequest, prepared: Prepared, episode: Episode) -> MessagesStream:
        return MessagesStream(request, prepared)

    def error(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        return messages_error(status, message)

    def too_long(self, num_tokens: int, limit: int) -> str:
        return f"prompt is too long: {num_tokens} tokens > {limit - 1} maximum"


class MessagesStream:
    """Implements `exchange.Stream`."""

    def __init__(self, request: ApiRequest, prepared: Prepared) -> None:
        self.request, self.prepared = request, prepared
        self.shown = 0

    def opening(self) -> list[Event]:
        message = _message(self.request, self.prepared)
        message["usage"] = {"input_tokens": len(self.prepared.read_ids), "output_tokens": 0}
        return [_event("message_start", message=message)]

    def text(self, delta: str) -> list[Event]:
        events = [] if self.shown else [_event("content_block_start", index=0, content_block=_text_block(""))]
        self.shown += len(delta)
        return [*events, _delta(0, {"type": "text_delta", "text": delta})]

    def ping(self) -> list[Event]:
        return [_event("ping")]

    def closing(self, done: Done) -> list[Event]:
        sampled = done.answers[0]
        events: list[Event] = []
        if rest := sampled.content[self.shown :]:
            events += self.text(rest)
        if self.shown:
            events.append(_event("content_block_stop", index=0))
        first = 1 if self.shown else 0
        for index, block in enumerate((b for b in _blocks(sampled) if b["type"] == "tool_use"), first):
            events.append(_event("content_block_start", index=index, content_block=block | {"input": {}}))
            partial = arguments_text(block["input"])
            events.append(_delta(index, {"type": "input_json_delta", "partial_json": partial}))
            events.append(_event("content_block_stop", index=index))
        events.append(_event("message_delta", delta=_stop(sampled), usage=_usage(done)))
        return [*events, _event("message_stop")]

    def failure(self, status: int, message: str) -> list[Event]:
        return [("error", messages_error(status, message))]


def messages_error(status: int, message: str) -> dict[str, Any]:
    """A refusal as Anthropic's clients read it."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def read_messages_history(body: dict[str, Any]) -> ChatHistory:
    """The conversation of a request. Raises `InputError` naming the field."""
    return _history(body, read_messages_tools(body.get("tools")))


def _history(body: dict[str, Any], tools: WireTools) -> ChatHistory:
    """A last message of the assistant is the beginning of the answer; Claude Code sends system messages, too."""
    raw = body.get("messages")
    if not isinstance(raw, list):
        raise InputError("messages: must be a list")
    chat: list[dict[str, Any]] = []
    if body.get("system"):
        chat.append({"role": "system", "content": text_of(body["system"], "system")})
    for number, message in enumerate(raw):
        where = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise InputError(f"{where}.role: must be user, assistant or system, got {str(role)[:100]!r}")
        blocks = message.get("content")
        if role == "system" or not isinstance(blocks, list):
            chat.append({"role": role, "content": text_of(blocks, f"{where}.content")})
        else:
            chat += (_assistant if role == "assistant" else _user)(blocks, f"{where}.content")
    return read_chat_history(chat, tools.functions, continue_last=True)


def _assistant(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    calls = [
        {
            "id": b.get("id"),
            "type": "function",
            "function": {"name": b.get("name"), "arguments": b.get("input")},
        }
        for b in blocks
        if isinstance(b, dict) and b.get("type") == "tool_use"
    ]
    texts = [b for b in blocks if not (isinstance(b, dict) and b.get("type") in ("tool_use", *_THOUGHTS))]
    message: dict[str, Any] = {"role": "assistant", "content": text_of(texts, where)}
    return [message | ({"tool_calls": calls} if calls else {})]


def _user(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """Results of tools come first, as the API demands; what comes after them is the user's."""
    results = [b for b in blocks if isinstance(b, dict) and b.get("type") == "tool_result"]
    texts = [b for b in blocks if not (isinstance(b, dict) and b.get("type") == "tool_result")]
    chat = [
        {
            "role": "tool",
            "tool_call_id": b.get("tool_use_id"),
            "content": _shown(b.get("content"), f"{where}.tool_result.content"),
        }
        for b in results
    ]
    if texts or not results:
        chat.append({"role": "user", "content": _shown(texts, where)})
    return chat


def _shown(blocks: Any, where: str) -> str | list[dict[str, Any]]:
    """What a user or a tool shows, with images in OpenAI's form. Raises `InputError`."""
    if not isinstance(blocks, list):
        return text_of(blocks, where)
    return content_of([_image(block, f"{where}[{number}]") for number, block in enumerate(blocks)], where)


def _image(block: Any, where: str) -> Any:
    """A block of an image in OpenAI's form; any other as it is."""
    if not isinstance(block, dict) or block.get("type") != "image":
        return block
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        raise InputError(f"{where}.source.type: must be 'base64'; addresses and files are not fetched")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:{source.get('media_type')};base64,{source.get('data')}"},
    }


def _message(request: ApiRequest, prepared: Prepared) -> dict[str, Any]:
    return {
        "id": call_id(prepared.id, 0),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(sampled: Sampled) -> list[dict[str, Any]]:
    blocks = [_text_block(sampled.content)] if sampled.content else []
    for call, wire_id in zip(sampled.tool_calls, sampled.tool_ids, strict=True):
        blocks.append({"type": "tool_use", "id": wire_id, "name": call.name, "input": call.arguments})
    return blocks


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "citations": None}


def _stop(sampled: Sampled) -> dict[str, Any]:
    if sampled.finish_reason == "length":
        # Also with calls: of several, the last may be missing.
        reason = "max_tokens"
    elif sampled.tool_calls:
        reason = "tool_use"
    else:
        reason = "stop_sequence" if sampled.stop_string else "end_turn"
    return {
        "stop_reason": reason,
        "stop_sequence": sampled.stop_string if reason == "stop_sequence" else None,
    }


def _usage(done: Done) -> dict[str, Any]:
    return {
        "input_tokens": done.prompt_tokens - done.cached_tokens,
        "cache_read_input_tokens": done.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": done.completion_tokens,
    }


def _event(name: str, **data: Any) -> Event:
    return name, {"type": name, **data}


def _delta(index: int, delta: dict[str, Any]) -> Event:
    return _event("content_block_delta", index=index, delta=delta)
