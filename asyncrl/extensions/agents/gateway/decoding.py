"""What a request may ask for beyond plain sampling where no episode is recorded, and why an episode refuses it.

An episode's calls are trained on: the trainer computes the log-probabilities of the plain policy at the episode's
temperature, so a mask or a changed distribution would make them wrong.
"""

from __future__ import annotations

import json
from typing import Any

from asyncrl.config_sections import check_template_args
from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.fields import SAMPLING_IGNORED, ignored, integer, number, refuse
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.types import Decoding

MAX_OPTIONS, MAX_OPTION = 16, 200
"""Variables of the chat template in one request, and characters of one."""
MAX_TOP_LOGPROBS = 20
"""As in OpenAI's API, and as many as vLLM gives unless told otherwise."""
MASKED = "the trainer could not know which tokens were masked"
NOT_KEPT = "an episode keeps the log-probabilities of its sampled tokens only"
_ONLY_PLAIN: dict[str, tuple[Any, ...]] = {"logit_bias": ({},)}


def refuse_recorded(episode: Episode, name: str, why: str) -> None:
    """Raise `InputError` where the calls are recorded to be trained on."""
    if episode.recorded:
        raise InputError(
            f"{name}: is not served to an episode, since {why}; use a key without an episode (POST /asyncrl/v1/keys)"
        )


def read_decoding(
    body: dict[str, Any],
    episode: Episode,
    schema: str = "",
    top_logprobs: int | None = None,
    echo: bool = False,
) -> tuple[Decoding | None, tuple[str, ...]]:
    """Return how a request is decoded, None for plainly, and which of its parameters an episode ignores.

    schema: JSON schema of the answer, see `Decoding`. top_logprobs: alternatives to report beside each token, None
    for no log-probabilities but those of sampled tokens. echo: report them for the prompt too.
    """
    if episode.recorded:
        return None, ignored(body, SAMPLING_IGNORED)
    refuse(body, _ONLY_PLAIN)
    top_k = integer(body, "top_k", 0, -1)
    decoding = Decoding(
        top_p=number(body, "top_p", 1.0, 0.0, 1.0),
        top_k=max(0, top_k),
        min_p=number(body, "min_p", 0.0, 0.0, 1.0),
        presence_penalty=number(body, "presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=number(body, "repetition_penalty", 1.0, 0.01, 100.0),
        schema=schema,
        top_logprobs=top_logprobs,
        prompt_logprobs=echo and top_logprobs is not None,
    )
    return None if decoding == Decoding() else decoding, ()


def read_format(
    raw: Any, where: str, nested: bool, episode: Episode, tools: Any
) -> tuple[str, tuple[str, ...]]:
    """Return the JSON schema that an answer has to follow, as text, and what was ignored; "" for free text.

    An episode's turns are sampled plainly and the wish is counted as ignored, or refused where the episode's
    `response_format` says so. raw: `{"type": "text" | "json_object" | "json_schema", ...}`; the schema is in it, or
    where `nested` one level below, in "json_schema". Raises `InputError`, for an episode with the reason.
    """
    kind = raw.get("type") if isinstance(raw, dict) else raw
    if kind is None or kind == "text":
        return "", ()
    if kind not in ("json_object", "json_schema"):
        raise InputError(f"{where}.type: must be text, json_object or json_schema, got {str(kind)[:100]!r}")
    if episode.recorded and episode.spec.response_format == "ignore":
        return "", (where,)
    refuse_recorded(episode, where, MASKED)
    if tools:
        raise InputError(f"{where}: cannot be combined with tools, since a call would not follow it")
    if kind == "json_object":
        return json.dumps({"type": "object"}), ()
    holder = raw.get("json_schema") if nested else raw
    place = f"{where}.json_schema" if nested else where
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if not isinstance(schema, dict):
        raise InputError(f"{place}.schema: must be a JSON schema, got {str(schema)[:100]!r}")
    return json.dumps(schema), ()


def read_template_options(body: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template that a request gives, as vLLM's clients do in `chat_template_kwargs`.

    Raises `InputError`.
    """
    given = body.get("chat_template_kwargs")
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MAX_OPTIONS:
        raise InputError(f"chat_template_kwargs: must be an object of at most {MAX_OPTIONS} values")
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str | None) or len(str(value)) > MAX_OPTION:
            raise InputError(
                f"chat_template_kwargs.{name[:64]}: must be a number, true, false or a short text"
            )
    try:
        return check_template_args(given)
    except ValueError as error:
        raise InputError(f"chat_template_kwargs.{error}") from None
