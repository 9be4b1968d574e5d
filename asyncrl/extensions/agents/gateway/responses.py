"""OpenAI's `/v1/responses`. The server keeps the items of a response until the episode ends, for
`previous_response_id`."""

from __future__ import annotations

from typing import Any

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat import read_sampling
from asyncrl.extensions.agents.gateway.chat_history import read_chat_history, text_of
from asyncrl.extensions.agents.gateway.decoding import read_decoding, read_format
from asyncrl.extensions.agents.gateway.exchange import ApiRequest, Done, flag, openai_error, openai_too_long
from asyncrl.extensions.agents.gateway.fields import ignored, integer, refuse
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.responses_items import call_item, read_items, resolve_references
from asyncrl.extensions.agents.gateway.responses_stream import ResponsesStream
from asyncrl.extensions.agents.gateway.sampler import call_id
from asyncrl.extensions.agents.gateway.sampling import Prepared, Sampled
from asyncrl.extensions.agents.gateway.wire_tools import WireTools, read_responses_tools

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
        wanted = body.get("tools") if body.get("tool_choice") != "none" else None
        schema, plain = read_format(text.get("format"), "text.format", False, episode, wanted)
        decoding, dropped = read_decoding(body, episode, schema)
        tools = read_responses_tools(body.get("tools"))
        given, unknown = resolve_references(_items(body.get("input")), episode.items)
        items = (*_earlier(body.get("previous_response_id"), episode), *given)
        chat, left_out = read_items(items, tools)
        unused = (*dropped, *plain, *tools.dropped, *unknown, *left_out, *ignored(body, _IGNORED))
        sampling = read_sampling({**body, "n": None, "stop": None}, episode, limit, unused, decoding)
        if body.get("instructions"):
            chat.insert(0, {"role": "system", "content": text_of(body["instructions"], "instructions")})
        history = read_chat_history(chat, tools.functions)
        return ApiRequest(body, sampling, history, stream=flag(body, "stream"), items=items, tools=tools)

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        sampled = done.answers[0]
        response = response_head(done.request, done.prepared)
        response["output"] = output_items(done.prepared, sampled, done.request.tools)
        if episode.recorded:
            episode.items.update((item["id"], item) for item in response["output"])
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


def output_items(prepared: Prepared, sampled: Sampled, tools: WireTools) -> list[dict[str, Any]]:
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
        items.append(call_item(call, wire_id, status, tools))
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
