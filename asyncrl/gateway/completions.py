"""`/v1/completions`: a plain prompt, text or token ids."""

from __future__ import annotations

from typing import Any

from asyncrl.errors import InputError
from asyncrl.gateway.chat import read_sampling, usage
from asyncrl.gateway.episode import Episode
from asyncrl.gateway.exchange import Ask, Done, Event, flag, openai_error, openai_too_long
from asyncrl.gateway.fields import SAMPLING_IGNORED, ignored, integer, refuse
from asyncrl.gateway.sampler import call_id
from asyncrl.gateway.sampling import Prepared, Sampled

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""
_REFUSED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "logprobs": (0, 1, False),
}


class CompletionFormat:
    """Implements `exchange.Format`."""

    id_prefix = "cmpl-"

    def read(self, body: dict[str, Any], episode: Episode) -> Ask:
        refuse(body, _REFUSED)
        limit = integer(body, "max_tokens", DEFAULT_MAX_TOKENS, 1)
        sampling = read_sampling(body, episode, limit, ignored(body, SAMPLING_IGNORED))
        return Ask(body, sampling, prompt=_prompt(body.get("prompt")), stream=flag(body, "stream"))

    def answer(self, done: Done, episode: Episode) -> dict[str, Any]:
        choices = [_choice(done, index, sampled) for index, sampled in enumerate(done.answers)]
        return {**_head(done.ask, done.prepared), "choices": choices, "usage": usage(done)}

    def stream(self, ask: Ask, prepared: Prepared, episode: Episode) -> CompletionStream:
        return CompletionStream(ask, prepared)

    def error(self, status: int, message: str, code: str = "") -> dict[str, Any]:
        return openai_error(status, message, code)

    def too_long(self, num_tokens: int, limit: int) -> str:
        return openai_too_long(num_tokens, limit)


class CompletionStream:
    """Implements `exchange.Stream`."""

    def __init__(self, ask: Ask, prepared: Prepared) -> None:
        self.ask = ask
        self.head = _head(ask, prepared)
        self.shown = 0

    def opening(self) -> list[Event]:
        return []

    def text(self, delta: str) -> list[Event]:
        self.shown += len(delta)
        choice = {"index": 0, "text": delta, "logprobs": None, "finish_reason": None}
        return [("", {**self.head, "choices": [choice]})]

    def closing(self, done: Done) -> list[Event]:
        events: list[Event] = []
        for index, sampled in enumerate(done.answers):
            choice = _choice(done, index, sampled)
            choice["text"] = choice["text"][self.shown :]
            events.append(("", {**self.head, "choices": [choice]}))
        if (self.ask.body.get("stream_options") or {}).get("include_usage"):
            events.append(("", {**self.head, "choices": [], "usage": usage(done)}))
        return [*events, ("", "[DONE]")]

    def failure(self, status: int, message: str) -> list[Event]:
        return [("", openai_error(status, message))]


def _prompt(raw: Any) -> str | list[int]:
    """One prompt. Raises `InputError` for several, and for what is neither text nor token ids."""
    one = raw[0] if isinstance(raw, list) and len(raw) == 1 and isinstance(raw[0], str | list) else raw
    if isinstance(one, str):
        return one
    whole = isinstance(one, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in one)
    if not whole or not all(0 <= i < 2**31 for i in one):
        raise InputError(
            "prompt: must be one text or one list of token ids; ask for several in several calls"
        )
    return one


def _head(ask: Ask, prepared: Prepared) -> dict[str, Any]:
    return {
        "id": call_id(prepared.id, 0),
        "object": "text_completion",
        "created": ask.created,
        "model": ask.model,
    }


def _choice(done: Done, index: int, sampled: Sampled) -> dict[str, Any]:
    return {
        "index": index,
        "text": sampled.text,
        "logprobs": _logprobs(done, sampled),
        "finish_reason": sampled.finish_reason,
    }


def _logprobs(done: Done, sampled: Sampled) -> dict[str, Any] | None:
    wanted = done.ask.body.get("logprobs")
    if wanted is None or wanted is False:
        return None
    ids = sampled.generated.token_ids.tolist()
    tokens = [done.renderer.tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    offsets = [sum(map(len, tokens[:k])) for k in range(len(tokens))]
    logprobs = sampled.generated.logprobs.tolist()
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": None, "text_offset": offsets}
