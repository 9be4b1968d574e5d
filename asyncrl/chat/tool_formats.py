"""How a turn's text becomes an `Action`: the format of a model's reasoning, then that of its tool calls, by name.

Formats of this package import nothing heavy. Every other name is that of a library (`turn_formats`,
`asyncrl/extensions/table.py`), and only a process that uses one imports the library.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from asyncrl.chat.harmony import parse_harmony, split_harmony
from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_calls import Tools, TurnParser, parse_hermes, parse_llama, parse_mistral
from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows

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


class FormatLibrary(Protocol):
    """Formats of a library, which is not imported before one is loaded."""

    owner: str
    """Whose they are, for errors."""

    def names(self, key: str) -> tuple[str, ...]:
        """Return the names that `model.tool_format` or `model.reasoning_format` may have; () where the library is not
        installed. key: `tool_format` or `reasoning_format`."""
        ...

    def tool_parser(self, name: str, tokenizer: Any) -> TurnParser:
        """Return a parser of tool calls. Raises `ConfigError` where the tokenizer lacks tokens it needs."""
        ...

    def reasoning_parser(self, name: str, tokenizer: Any) -> SplitReasoning:
        """Return what splits a turn in reasoning and the rest. Raises `ConfigError` as for tool calls."""
        ...


@functools.cache
def libraries() -> tuple[FormatLibrary, ...]:
    """Return the libraries whose formats may be named."""
    return tuple(row.load()() for row in rows("turn_formats"))


class TurnFormat(NamedTuple):
    """How the turns of a model are read."""

    parse: TurnParser
    split: SplitReasoning | None
    """For turns that may call nothing; None where the reasoning stays in the text."""


def load_format(tool_format: str, reasoning_format: str, renderer: ChatRenderer) -> TurnFormat:
    """Return how a model's turns are read. Raises `ConfigError`, also for a format that needs other tokens."""
    check_formats(tool_format, reasoning_format)
    parse = TOOL_FORMATS.get(tool_format) or _library("tool_format", tool_format).tool_parser(
        tool_format, renderer.tokenizer
    )
    if tool_format == "harmony":
        return TurnFormat(parse, split_harmony)
    if not reasoning_format:
        return TurnFormat(parse, None)
    split: SplitReasoning = (
        ThinkTags(renderer.opens_reasoning())
        if reasoning_format == "think"
        else _library("reasoning_format", reasoning_format).reasoning_parser(
            reasoning_format, renderer.tokenizer
        )
    )

    def parse_rest(text: str, tools: Tools = (), /) -> Action:
        # Reasoning may mention calls that are not made.
        reasoning, rest = split(text)
        return replace(parse(rest, tools), reasoning=reasoning.strip())

    return TurnFormat(parse_rest, split)


def check_formats(tool_format: str, reasoning_format: str) -> None:
    """Check the names alone, without importing a library. Raises `ConfigError`."""
    for key, name, own in (
        ("tool_format", tool_format, tuple(TOOL_FORMATS)),
        ("reasoning_format", reasoning_format, OWN_REASONING_FORMATS),
    ):
        theirs = [(library.owner, library.names(key)) for library in libraries()]
        if name not in own and not any(name in names for _, names in theirs):
            others = "".join(
                f", and {owner}'s {', '.join(names) or '(not installed)'}" for owner, names in theirs
            )
            raise ConfigError(
                f"model.{key}: unknown format {name!r}; allowed: {', '.join(filter(None, own))}{others}"
            )
    if tool_format == "harmony" and reasoning_format:
        raise ConfigError(
            "model.reasoning_format: must be left out for model.tool_format='harmony', whose turns name their "
            f"reasoning, got {reasoning_format!r}"
        )


def _library(key: str, name: str) -> FormatLibrary:
    return next(library for library in libraries() if name in library.names(key))


def needs_library(tool_format: str, reasoning_format: str) -> bool:
    """Return whether a process that reads turns imports a library."""
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
