"""`/v1/completions`: plain prompts, text or token ids; for an episode one, without its log-probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat import read_sampling, usage
from asyncrl.extensions.agents.gateway.decoding import (
    MAX_TOP_LOGPROBS,
    NOT_KEPT,
    read_decoding,
    read_format,
    refuse_recorded,
)
from asyncrl.extensions.agents.gateway.exchange import (
    ApiRequest,
    Done,
    Event,
    flag,
    openai_error,
    openai_too_long,
)
from asyncrl.extensions.agents.gateway.fields import integer, refuse
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.extensions.agents.gateway.sampler import call_id
from asyncrl.extensions.agents.gateway.sampling import Prepared, Sampled

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""
MAX_PROMPTS = 512
_REFUSED: dict[str, tuple[Any, ...]] = {"suffix": ("",), "best_of": (1,)}


class CompletionFormat:
    """Implements `exchange.Format`."""

    id_prefix = "cmpl-"

    def read(self, body: dict[str, Any], episode: Episode) -> ApiRequest:
        refuse(body, _REFUSED)
        echo, wanted = flag(body, "echo"), _wanted(body)
        if echo:
            refuse_recorded(episode, "echo", NOT_KEPT)
        elif wanted is not None and wanted > 1:
            refuse_recorded(episode, "logprobs above 1", NOT_KEPT)
        # What is asked for with 0 are log-probabilities of the prompt; engines sample one token at least.
        limit = max(1, integer(body, "max_tokens", DEFAULT_MAX_TOKENS, 0 if echo else 1))
        schema, plain = read_format(body.get("response_format"), "response_format", True, episode, None)
        decoding, dropped = read_decoding(body, episode, schema, wanted, echo)
        dropped = (*dropped, *plain)
        stream, prompts = flag(body, "stream"), _prompts(body.get("prompt"))
        if len(prompts) > 1:
            refuse_recorded(episode, "prompt: several", "each call of it is one turn")
        if stream and (echo or len(prompts) > 1):
            raise InputError("stream: an echoed prompt or several prompts are answered whole")
        return ApiRequest(
            body, read_sampling(body, episode, limit, dropped, decoding), prompts=prompts, stream=stream
        )

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        choices = [_choice(done, index, sampled) for index, sampled in enumerate(done.answers)]
        counts = usage(done)
        if done.request.body.get("max_tokens") == 0:
            counts |= {"completion_tokens": 0, "total_tokens": done.prompt_tokens}
        return {**_head(done.request, done.prepared), "choices": choices, "usage": counts}

    @staticmethod
    def merge(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The answers to several prompts as one: choices in their order, counts added up."""
        choices = [choice for answer in answers for choice in answer["choices"]]
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
        usage = {name: sum(answer["usage"][name] for answer in answers) for name in counts}
        return {
            **answers[0],
            "choices": [choice | {"index": index} for index, choice in enumerate(choices)],
            "usage": usage | {"prompt_tokens_details": {"cached_tokens": cached}},
        }

    def stream(self, request: ApiRequest, prepared: Prepared, episode: Episode) -> CompletionStream:
        return CompletionStream(request, prepared)

    def error(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        return openai_error(status, message, code)

    def too_long(self, num_tokens: int, limit: int) -> str:
        return openai_too_long(num_tokens, limit)


class CompletionStream:
    """Implements `exchange.Stream`."""

    def __init__(self, request: ApiRequest, prepared: Prepared) -> None:
        self.request = request
        self.head = _head(request, prepared)
        self.shown = 0

    def opening(self) -> list[Event]:
        return []

    def text(self, delta: str) -> list[Event]:
        self.shown += len(delta)
        choice = {"index": 0, "text": delta, "logprobs": None, "finish_reason": None}
        return [("", {**self.head, "choices": [choice]})]

    def ping(self) -> list[Event]:
        return []

    def closing(self, done: Done) -> list[Event]:
        events: list[Event] = []
        for index, sampled in enumerate(done.answers):
            choice = _choice(done, index, sampled)
            choice["text"] = choice["text"][self.shown :]
            events.append(("", {**self.head, "choices": [choice]}))
        if (self.request.body.get("stream_options") or {}).get("include_usage"):
            events.append(("", {**self.head, "choices": [], "usage": usage(done)}))
        return [*events, ("", "[DONE]")]

    def failure(self, status: int, message: str) -> list[Event]:
        return [("", openai_error(status, message))]


def _wanted(body: dict[str, Any]) -> int | None:
    """Number of alternatives to show for each token; None for no log-probabilities at all."""
    value = body.get("logprobs")
    if value is None or value is False:
        return None
    return 0 if value is True else integer(body, "logprobs", 0, 0, MAX_TOP_LOGPROBS)


def _prompts(raw: Any) -> tuple[str | list[int], ...]:
    """The prompts: one, or a list of them. Raises `InputError` for what is neither text nor token ids."""
    several = isinstance(raw, list) and raw and isinstance(raw[0], str | list)
    found = raw if several else [raw]
    if len(found) > MAX_PROMPTS:
        raise InputError(f"prompt: must be at most {MAX_PROMPTS} prompts, got {len(found)}")
    for one in found:
        whole = isinstance(one, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in one)
        if not isinstance(one, str) and (not whole or not all(0 <= i < 2**31 for i in one)):
            raise InputError(f"prompt: must be texts or lists of token ids, got {str(one)[:100]!r}")
    return tuple(found)


def _head(request: ApiRequest, prepared: Prepared) -> dict[str, Any]:
    return {
        "id": call_id(prepared.id, 0),
        "object": "text_completion",
        "created": request.created,
        "model": request.model,
    }


def _choice(done: Done, index: int, sampled: Sampled) -> dict[str, Any]:
    body, text, reason = done.request.body, sampled.text, sampled.finish_reason
    if body.get("max_tokens") == 0:
        text, reason = "", "length"
    if body.get("echo"):
        text = done.prepared.prompt_text or _decoded(done, done.prepared.read_ids.tolist())
        text += "" if body.get("max_tokens") == 0 else sampled.text
    return {"index": index, "text": text, "logprobs": _logprobs(done, sampled), "finish_reason": reason}


def _decoded(done: Done, ids: list[int]) -> str:
    return done.renderer.tokenizer.decode(ids, skip_special_tokens=False)


def _logprobs(done: Done, sampled: Sampled) -> dict[str, Any] | None:
    """Log-probabilities of the answer, after those of an echoed prompt; its first token has none."""
    body, generated = done.request.body, sampled.generated
    wanted = _wanted(body)
    if wanted is None:
        return None
    count = 0 if body.get("max_tokens") == 0 else len(generated.token_ids)
    ids: list[int] = generated.token_ids.tolist()[:count]
    logprobs: list[float | None] = list(generated.logprobs.tolist()[:count])
    tops: list[dict[int, float] | None] = list(generated.top_logprobs[:count])
    if body.get("echo"):
        prompt = done.prepared.read_ids.tolist()
        scores = generated.prompt_logprobs
        ids = prompt + ids
        logprobs = [None, *(top[i] for i, top in zip(prompt[1:], scores[1:], strict=True)), *logprobs]
        tops = [None, *scores[1:], *tops]
    tokens = [_decoded(done, [i]) for i in ids]
    ends = list(itertools.accumulate(map(len, tokens), initial=0))
    return {
        "tokens": tokens,
        "token_logprobs": logprobs,
        "top_logprobs": [_by_text(done, top) for top in tops] if tops else None,
        "text_offset": ends[:-1],
    }


def _by_text(done: Done, top: dict[int, float] | None) -> dict[str, float] | None:
    """Log-probabilities by the tokens' texts; of several with one text the likeliest, which comes first."""
    if top is None:
        return None
    found: dict[str, float] = {}
    for token_id, logprob in top.items():
        found.setdefault(_decoded(done, [token_id]), logprob)
    return found
