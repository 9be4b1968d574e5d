"""Assistant text to `Action`, in the tool-call format of the model family.

A malformed call never raises: it becomes a message the environment can show the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*(\[.*\])\s*\Z", re.DOTALL)


def parse_hermes(text: str) -> Action:
    """Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them."""
    if "<tool_call>" not in text:
        return Action(text.strip())
    return _collect(_HERMES.sub("", text), [match.group(1) for match in _HERMES.finditer(text)])


def parse_llama(text: str) -> Action:
    """Llama 3: the whole turn is one JSON object `{"name": ..., "parameters": {...}}`, or several with `;`."""
    stripped = text.strip().removeprefix("<|python_tag|>").strip()
    if not stripped.startswith("{"):
        return Action(text.strip())
    return _collect("", re.split(r"(?<=\})\s*;\s*(?=\{)", stripped))


def parse_mistral(text: str) -> Action:
    """Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`."""
    if "[TOOL_CALLS]" not in text:
        return Action(text.strip())
    content, _, _ = text.partition("[TOOL_CALLS]")
    match = _MISTRAL.search(text)
    if match is None:
        return Action(
            content.strip(), (), ("malformed tool call: [TOOL_CALLS] must be followed by a JSON list",)
        )
    try:
        calls = json.loads(match.group(1))
    except json.JSONDecodeError as error:
        return Action(content.strip(), (), (f"malformed tool call: {error}",))
    return _collect(content, [json.dumps(call) for call in calls])


def _collect(content: str, bodies: list[str]) -> Action:
    calls: list[ToolCall] = []
    errors: list[str] = []
    for number, body in enumerate(bodies):
        try:
            name, arguments = _parse_call(json.loads(body))
            calls.append(ToolCall(f"call-{number}", name, arguments))
        except (ValueError, TypeError) as error:
            errors.append(f"malformed tool call: {error}")
    return Action(content.strip(), tuple(calls), tuple(errors))


def _parse_call(call: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(call, dict):
        raise ValueError("must be a JSON object")
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name:
        raise ValueError('needs a "name"')
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be an object')
    return name, arguments


PARSERS: dict[str, Callable[[str], Action]] = {
    "hermes": parse_hermes,
    "llama": parse_llama,
    "mistral": parse_mistral,
}


def load_parser(name: str) -> Callable[[str], Action]:
    """Return the parser of a model family. Raises `ConfigError`."""
    if name not in PARSERS:
        raise ConfigError(f"model.tool_format: unknown format {name!r}; allowed: {', '.join(PARSERS)}")
    return PARSERS[name]
