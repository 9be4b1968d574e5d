"""`/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat_history import ChatHistory, read_chat_history
from asyncrl.extensions.agents.gateway.decoding import (
    MAX_TOP_LOGPROBS,
    NOT_KEPT,
    read_decoding,
    read_format,
    read_template_options,
    refuse_recorded,
)
from asyncrl.extensions.agents.gateway.exchange import (
    ApiRequest,
    Done,
    Event,
    arguments_text,
    flag,
    openai_error,
    openai_too_long,
)
from asyncrl.extensions.agents.gateway.fields import MAX_N, ignored, integer, number, refuse, stops
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.sampler import call_id
from asyncrl.extensions.agents.gateway.sampling import Prepared, Sampled, Sampling
from asyncrl.extensions.agents.gateway.wire_tools import CUSTOM, CUSTOM_INPUT, WireTools, read_chat_tools
from asyncrl.types import Decoding

_REFUSED: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": (),
    "functions": (),
    "function_call": (),
}
_IGNORED: dict[str, tuple[Any, ...]] = {"tool_choice": ("auto", "none"), "parallel_tool_calls": (True,)}


def read_sampling(
    body: dict[str, Any],
    episode: Episode,
    max_tokens: int,
    dropped: tuple[str, ...],
    decoding: Decoding | None = None,
) -> Sampling:
    """What OpenAI's chat and completion formats have in common. Raises `InputError`."""
    temperature = number(body, "temperature", 1.0, 0.0, 100.0)
    fixed = episode.spec.temperature
    if fixed is not None and body.get("temperature") is not None and temperature != fixed:
        dropped = (*dropped, "temperature")
    seed = integer(body, "seed", -1, -(2**63), 2**63 - 1) if body.get("seed") is not None else None
    return Sampling(
        max_tokens=max_tokens,
        n=integer(body, "n", 1, 1, MAX_N),
        stop=stops(body.get("stop")),
        temperature=temperature,
        seed=seed,
        decoding=decoding,
        parse_tools=body.get("tool_choice") != "none",
        template=read_template_options(body),
        ignored=dropped,
    )


class ChatFormat:
    """Implements `exchange.Format`."""

    id_prefix = "chatcmpl-"

    def read(self, body: dict[str, Any], episode: Episode) -> ApiRequest:
        refuse(body, _REFUSED)
        flag(body, "logprobs")
        limit = integer(body, "max_completion_tokens", 0, 1) or integer(body, "max_tokens", 0, 1)
        options = body.get("stream_options")
        if options is not None and not isinstance(options, dict):
            raise InputError("stream_options: must be an object")
        top = integer(body, "top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
        if top:
            refuse_recorded(episode, "top_logprobs", NOT_KEPT)
            if not body.get("logprobs"):
                raise InputError("top_logprobs: needs logprobs to be true")
        wanted = body.get("tools") if body.get("tool_choice") != "none" else None
        schema, plain = read_format(body.get("response_format"), "response_format", True, episode, wanted)
        decoding, dropped = read_decoding(body, episode, schema, top or None)
        tools = read_chat_tools(body.get("tools"))
        unused = (*dropped, *plain, *tools.dropped, *ignored(body, _IGNORED))
        continued = flag(body, "continue_final_message")
        history = read_chat_history(body.get("messages"), tools.functions, continued)
        _check_continued(body, continued, history)
        return ApiRequest(
            body,
            read_sampling(body, episode, limit, unused, decoding),
            history=history,
            stream=flag(body, "stream"),
            tools=tools,
        )

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": _message(sampled, done.request.tools),
                "logprobs": _logprobs(done, sampled),
                "finish_reason": finish_reason(sampled),
            }
            for index, sampled in enumerate(done.answers)
        ]
        head = _head(done.request, done.prepared, "chat.completion")
        return {**head, "choices": choices, "usage": usage(done)}

    def stream(self, request: ApiRequest, prepared: Prepared, episode: Episode) -> ChatStream:
        return ChatStream(request, prepared)

    def error(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        return openai_error(status, message, code)

    def too_long(self, num_tokens: int, limit: int) -> str:
        return openai_too_long(num_tokens, limit)


class ChatStream:
    """Implements `exchange.Stream`."""

    def __init__(self, request: ApiRequest, prepared: Prepared) -> None:
        self.request = request
        self.head = _head(request, prepared, "chat.completion.chunk")
        self.shown = 0

    def opening(self) -> list[Event]:
        delta = {"role": "assistant", "content": ""}
        return [self._chunk(index, delta) for index in range(self.request.sampling.n)]

    def text(self, delta: str) -> list[Event]:
        self.shown += len(delta)
        return [self._chunk(0, {"content": delta})]

    def ping(self) -> list[Event]:
        return []

    def closing(self, done: Done) -> list[Event]:
        events: list[Event] = []
        for index, sampled in enumerate(done.answers):
            rest = sampled.content[self.shown :]
            if reasoning := sampled.message.get("reasoning_content"):
                events.append(self._chunk(index, {"reasoning_content": reasoning}))
            if rest:
                events.append(self._chunk(index, {"content": rest}))
            calls = _wire_calls(sampled, self.request.tools)
            for position, call in enumerate(calls):
                events.append(self._chunk(index, {"tool_calls": [{"index": position, **call}]}))
            last = self._chunk(index, {}, finish_reason(sampled))
            if isinstance(last[1], dict):
                last[1]["choices"][0]["logprobs"] = _logprobs(done, sampled)
            events.append(last)
        if (self.request.body.get("stream_options") or {}).get("include_usage"):
            events.append(("", {**self.head, "choices": [], "usage": usage(done)}))
        return [*events, ("", "[DONE]")]

    def failure(self, status: int, message: str) -> list[Event]:
        return [("", openai_error(status, message))]

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> Event:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return "", {**self.head, "choices": [choice]}


def finish_reason(sampled: Sampled) -> str:
    """ "tool_calls", "stop", or "length", also with calls: of several, the last may be missing."""
    return "tool_calls" if sampled.tool_calls and sampled.finish_reason == "stop" else sampled.finish_reason


def usage(done: Done) -> dict[str, Any]:
    """Token counts as chat and completion answers carry them."""
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }


def _head(request: ApiRequest, prepared: Prepared, kind: str) -> dict[str, Any]:
    return {"id": call_id(prepared.id, 0), "object": kind, "created": request.created, "model": request.model}


def _message(sampled: Sampled, tools: WireTools) -> dict[str, Any]:
    calls = _wire_calls(sampled, tools)
    content = sampled.content or (None if calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning := sampled.message.get("reasoning_content"):
        message["reasoning_content"] = reasoning
    return {**message, "tool_calls": calls} if calls else message


def _wire_calls(sampled: Sampled, tools: WireTools) -> list[dict[str, Any]]:
    calls = []
    for call, wire_id in zip(sampled.tool_calls, sampled.tool_ids, strict=True):
        made: dict[str, Any] = {"name": call.name, "arguments": arguments_text(call.arguments)}
        if (kind := tools.of(call.name).kind) == CUSTOM:
            given = call.arguments.get(CUSTOM_INPUT, "")
            made = {"name": call.name, "input": given if isinstance(given, str) else arguments_text(given)}
        calls.append({"id": wire_id, "type": kind, kind: made})
    return calls


def _check_continued(body: dict[str, Any], continued: bool, history: ChatHistory) -> None:
    """Raise `InputError` for a last message that is to be continued and cannot be."""
    if continued and not history.prefill:
        raise InputError(
            "continue_final_message: the last message must be a text of the assistant, behind another message"
        )
    if continued and body.get("add_generation_prompt"):
        raise InputError("continue_final_message: cannot be combined with add_generation_prompt")


def _logprobs(done: Done, sampled: Sampled) -> dict[str, Any] | None:
    if not done.request.body.get("logprobs"):
        return None

    def shown(token_id: int, logprob: float) -> dict[str, Any]:
        token = done.renderer.tokenizer.decode([token_id], skip_special_tokens=False)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    generated, wanted = sampled.generated, done.request.body.get("top_logprobs") or 0
    # The engine adds the sampled token where it is not among the likeliest.
    tops = [list(top.items())[:wanted] for top in generated.top_logprobs] or [[]] * len(generated.token_ids)
    content = [
        shown(token_id, logprob) | {"top_logprobs": [shown(*one) for one in top]}
        for token_id, logprob, top in zip(
            generated.token_ids.tolist(), generated.logprobs.tolist(), tops, strict=True
        )
    ]
    return {"content": content, "refusal": None}
