"""How a turn's text becomes an `Action`: the format of a model's reasoning, then that of its tool calls, by name.

Formats of this package import nothing heavy. Every other name is one of vLLM's parsers (`vllm_parsers`), and only a
process that uses one imports vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from asyncrl.chat.harmony import parse_harmony, split_harmony
from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_calls import Tools, TurnParser, parse_hermes, parse_llama, parse_mistral
from asyncrl.chat.vllm_parsers import known_names, load_vllm_reasoning_parser, load_vllm_tool_parser
from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError

SplitReasoning = Callable[[str], tuple[str, str]]
"""Text of a turn to (reasoning, the rest)."""


TOOL_FORMATS: dict[str, TurnParser] = {
    "hermes": parse_hermes,
    "llama": parse_llama,
    "mistral": parse_mistral,
    "harmony": parse_harmony,
}
OWN_REASONING_FORMATS = ("", "think")
_THINK, _END_THINK = "<think>", "</think>"


class TurnFormat(NamedTuple):
    """How the turns of a model are read."""

    parse: TurnParser
    split: SplitReasoning | None
    """For turns that may call nothing; None where the reasoning stays in the text."""


def load_format(tool_format: str, reasoning_format: str, renderer: ChatRenderer) -> TurnFormat:
    """Return how a model's turns are read. Raises `ConfigError`, also for a format that needs other tokens."""
    check_formats(tool_format, reasoning_format)
    parse = TOOL_FORMATS.get(tool_format) or load_vllm_tool_parser(tool_format, renderer.tokenizer)
    if tool_format == "harmony":
        return TurnFormat(parse, split_harmony)
    if not reasoning_format:
        return TurnFormat(parse, None)
    split: SplitReasoning = (
        ThinkTags(renderer.opens_reasoning())
        if reasoning_format == "think"
        else load_vllm_reasoning_parser(reasoning_format, renderer.tokenizer)
    )

    def parse_rest(text: str, tools: Tools = (), /) -> Action:
        # Reasoning may mention calls that are not made.
        reasoning, rest = split(text)
        return replace(parse(rest, tools), reasoning=reasoning.strip())

    return TurnFormat(parse_rest, split)


def check_formats(tool_format: str, reasoning_format: str) -> None:
    """Check the names alone, without importing vLLM. Raises `ConfigError`."""
    for key, name, own in (
        ("tool_format", tool_format, tuple(TOOL_FORMATS)),
        ("reasoning_format", reasoning_format, OWN_REASONING_FORMATS),
    ):
        theirs = known_names(key)
        if name not in own and name not in theirs:
            listed = f"; allowed: {', '.join(filter(None, own))}, and vLLM's {', '.join(theirs) or '(not installed)'}"
            raise ConfigError(f"model.{key}: unknown format {name!r}{listed}")
    if tool_format == "harmony" and reasoning_format:
        raise ConfigError(
            "model.reasoning_format: must be left out for model.tool_format='harmony', whose turns name their "
            f"reasoning, got {reasoning_format!r}"
        )


def needs_vllm(tool_format: str, reasoning_format: str) -> bool:
    """Return whether a process that reads turns imports vLLM."""
    return tool_format not in TOOL_FORMATS or reasoning_format not in OWN_REASONING_FORMATS


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """Splits `<think>reasoning</think>rest`, the form of Qwen3, GLM, DeepSeek and Kimi models.

    opened: the generation prompt writes `<think>` itself, so a turn starts inside the reasoning. A turn that does not
    end its reasoning is all reasoning: a call in it was not made.
    """

    opened: bool

    def __call__(self, text: str) -> tuple[str, str]:
        stripped = text.lstrip()
        if not self.opened and not stripped.startswith(_THINK):
            return "", text
        reasoning, _, rest = stripped.removeprefix(_THINK).partition(_END_THINK)
        return reasoning, rest
