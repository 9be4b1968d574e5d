"""OpenAI's `/v1/responses`. The server keeps the items of a response until the episode ends, for
`previous_response_id`."""

from __future__ import annotations

from typing import Any

from asyncrl.errors import InputError
from asyncrl.gateway.chat import read_sampling
from asyncrl.gateway.chat_history import SHOWN_TO, content_of, function_tool, read_chat_history, text_of
from asyncrl.gateway.decoding import read_decoding, read_format
from asyncrl.gateway.exchange import ApiRequest, Done, arguments_text, flag, openai_error, openai_too_long
from asyncrl.gateway.fields import ignored, integer, refuse
from asyncrl.gateway.recorded_episode import Episode
from asyncrl.gateway.responses_stream import ResponsesStream
from asyncrl.gateway.sampler import call_id
from asyncrl.gateway.sampling import Prepared, Sampled

_IGNORED: dict[str, tuple[Any, ...]] = {"tool_choice": ("auto", "none"), "parallel_tool_calls": (True,)}
_REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "top_logprobs": (0,),
}


class ResponsesFormat:
    """Implements `exchange.Format`."""

    id_prefix = "resp_"

    def read(self, body: dict[str, Any], episode: Episode) -> ApiRequest:
        refuse(body, _REFUSED)
        limit = integer(body, "max_output_tokens", 0, 1)
        text = body.get("text") or {}
        if not isinstance(text, dict):
            raise InputError(f"text: must be an object, got {str(text)[:100]!r}")
        tools = body.get("tools") if body.get("tool_choice") != "none" else None
        schema = read_format(text.get("format"), "text.format", False, episode, tools)
        decoding, dropped = read_decoding(body, episode, schema)
        sampling = read_sampling(
            {**body, "n": None, "stop": None}, episode, limit, (*dropped, *ignored(body, _IGNORED)), decoding
        )
        items = (*_earlier(body.get("previous_response_id"), episode), *_items(body.get("input")))
        chat = _chat(items)
        if body.get("instructions"):
            chat.insert(0, {"role": "system", "content": text_of(body["instructions"], "instructions")})
        history = read_chat_history(chat, _tools(body.get("tools")))
        return ApiRequest(body, sampling, history, stream=flag(body, "stream"), items=items)

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        sampled = done.answers[0]
        response = response_head(done.request, done.prepared)
        response["output"] = output_items(done.prepared, sampled)
        if episode.recorded:
            episode.responses[response["id"]] = (*done.request.items, *response["output"])
        cut = sampled.finish_reason == "length"
        response["status"] = "incomplete" if cut else "completed"
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        response["usage"] = {
            "input_tokens": done.prompt_tokens,
            "input_tokens_details": {"cached_tokens": done.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": done.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": done.prompt_tokens + done.completion_tokens,
        }
        return response

    def stream(self, request: ApiRequest, prepared: Prepared, episode: Episode) -> ResponsesStream:
        return ResponsesStream(
            response_head(request, prepared), message_id(prepared.id), lambda done: self.answer(done, episode)
        )

    def error(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        return openai_error(status, message, code)

    def too_long(self, num_tokens: int, limit: int) -> str:
        return openai_too_long(num_tokens, limit)


def response_head(request: ApiRequest, prepared: Prepared) -> dict[str, Any]:
    """A response as it is before anything is sampled."""
    body = request.body
    return {
        "id": call_id(prepared.id, 0),
        "object": "response",
        "created_at": request.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": request.sampling.temperature,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "usage": None,
    }


def message_id(response_id: str) -> str:
    """Id of the message item of a response."""
    return f"msg_{response_id.removeprefix(ResponsesFormat.id_prefix)}"


def output_items(prepared: Prepared, sampled: Sampled) -> list[dict[str, Any]]:
    """An answer as output items: its text, then its calls."""
    items: list[dict[str, Any]] = []
    status = "incomplete" if sampled.finish_reason == "length" else "completed"
    if sampled.content or not sampled.tool_calls:
        items.append(
            {
                "type": "message",
                "id": message_id(prepared.id),
                "role": "assistant",
                "status": status,
                "content": [{"type": "output_text", "text": sampled.content, "annotations": []}],
            }
        )
    for call, wire_id in zip(sampled.tool_calls, sampled.tool_ids, strict=True):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{wire_id}",
                "call_id": wire_id,
                "name": call.name,
                "arguments": arguments_text(call.arguments),
                "status": status,
            }
        )
    return items


def _earlier(response_id: Any, episode: Episode) -> tuple[dict[str, Any], ...]:
    if response_id is None:
        return ()
    if not episode.recorded:
        raise InputError(
            "previous_response_id: a key without an episode keeps no responses; send their items as input"
        )
    items = episode.responses.get(str(response_id))
    if items is None:
        raise InputError(f"previous_response_id: this episode has no response {str(response_id)[:100]!r}")
    return items


def _items(raw: Any) -> list[dict[str, Any]]:
    if isinstance(raw, str):
        return [{"role": "user", "content": raw}]
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise InputError("input: must be a text or a list of items")
    return raw


def _chat(items: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Items as chat messages. What one turn said comes as several items: its text and each of its calls."""
    chat: list[dict[str, Any]] = []
    turn_open = False
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = item.get("type", "message")
        if kind == "reasoning":
            continue
        if kind == "message":
            role = item.get("role")
            read = content_of if role in SHOWN_TO else text_of
            chat.append({"role": role, "content": read(item.get("content"), f"{where}.content")})
            turn_open = role == "assistant"
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not turn_open:
                chat.append({"role": "assistant", "content": ""})
                turn_open = True
            chat[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = content_of(item.get("output"), f"{where}.output")
            chat.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
            turn_open = False
        else:
            raise InputError(f"{where}.type: {str(kind)[:100]!r} is not supported")
    return chat


def _tools(raw: Any) -> list[dict[str, Any]] | None:
    if raw is None:
        return None
    if not isinstance(raw, list):
        raise InputError("tools: must be a list")
    tools = []
    for number, tool in enumerate(raw):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise InputError(f'tools[{number}]: must be {{"type": "function", "name": ...}}')
        tools.append(function_tool(tool, f"tools[{number}]", "parameters"))
    return tools
