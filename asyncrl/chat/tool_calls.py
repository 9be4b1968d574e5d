"""Assistant text to `Action`, in the tool-call format of the model family.

On well-formed turns these parsers agree with vLLM's own (`tests/chat/test_tool_calls_vllm.py`). Where vLLM gives up
on a turn with a malformed call and hands it on as plain text, these parsers keep the well-formed calls and describe
what is wrong with the others, in a message that the environment can show the model. They never raise either. JSON has
types of its own, so none of them reads the schemas in `tools`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from asyncrl.env.protocol import Action, ToolCall, tool_call_id

Tools = Sequence[Mapping[str, Any]]
MAX_DEPTH = 32
"""Nesting of a call's arguments."""
_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS = "[TOOL_CALLS]"
_ARGS = "[ARGS]"


class TurnParser(Protocol):
    """Reads a sampled turn, without its stop token. Never raises."""

    def __call__(self, text: str, tools: Tools = (), /) -> Action: ...


def parse_hermes(text: str, tools: Tools = ()) -> Action:
    """Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

    The content is what stands before the first call.
    """
    content, marker, _ = text.partition("<tool_call>")
    if not marker:
        return Action(text.strip())
    return collect(content, [decode_json(match.group(1)) for match in _HERMES.finditer(text)])


def parse_llama(text: str, tools: Tools = ()) -> Action:
    """Llama 3: JSON objects `{"name": ..., "parameters": {...}}`, with `;` between them; other text is dropped.

    A turn that neither starts with an object nor with `<|python_tag|>` and holds no call is an answer.
    """
    stripped = text.strip().removeprefix(_PYTHON_TAG).strip()
    found: list[Any] = []
    position = stripped.find("{")
    while position >= 0:
        try:
            value, end = _DECODER.raw_decode(stripped, position)
            found.append(value)
        except (ValueError, RecursionError) as error:
            found.append(Malformed(_reason(error)))
            break
        position = stripped.find("{", end)
    meant = _PYTHON_TAG in text or stripped.startswith("{")
    if not meant and not any(isinstance(value, dict) and "name" in value for value in found):
        return Action(text.strip())
    return collect("", found or [Malformed(f"{_PYTHON_TAG} must be followed by a JSON object")])


def parse_mistral(text: str, tools: Tools = ()) -> Action:
    """Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and `[TOOL_CALLS]name[ARGS]{...}` repeated.

    The second form, with or without `[ARGS]`, is that of tokenizers from version 11 on.
    """
    content, *bodies = text.split(_TOOL_CALLS)
    if not bodies:
        return Action(text.strip())
    values: list[Any] = []
    for body in bodies:
        stripped = body.strip()
        if stripped.startswith(("[", "{")) and not stripped.startswith(_ARGS):
            value = decode_json(stripped)
            values += value if isinstance(value, list) else [value]
            continue
        name, brace, arguments = stripped.partition("{")
        if not brace:
            values.append(Malformed(f"{_TOOL_CALLS} must be followed by a JSON list or a name and an object"))
            continue
        values.append(
            {"name": name.strip().removesuffix(_ARGS).strip(), "arguments": decode_json(brace + arguments)}
        )
    return collect(content, values)


class Malformed:
    """Stands for a call that cannot be read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def decode_json(body: str) -> Any:
    """Return the value of a JSON text, or `Malformed` saying what is wrong with it."""
    try:
        return _DECODER.decode(body.strip())
    except (ValueError, RecursionError) as error:
        return Malformed(_reason(error))


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def collect(content: str, values: Sequence[Any], ids: Sequence[str] = ()) -> Action:
    """Return the action of decoded calls, each `{"name", "arguments"}` or `Malformed`.

    ids: those that the model gave the first calls itself; "" or none for one that is numbered.
    """
    calls: list[ToolCall] = []
    errors: list[str] = []
    for number, value in enumerate(values):
        try:
            name, arguments = _parse_call(value)
            given = ids[number] if number < len(ids) else ""
            calls.append(ToolCall(given or tool_call_id(number), name, arguments))
        except ValueError as error:
            errors.append(f"malformed tool call: {error}")
    return Action(content.strip(), tuple(calls), tuple(errors))


def _parse_call(call: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(call, Malformed):
        raise ValueError(call.reason)
    if not isinstance(call, dict):
        raise ValueError("must be a JSON object")
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = decode_json(arguments)
    if isinstance(arguments, Malformed):
        raise ValueError(arguments.reason)
    if not isinstance(name, str) or not name:
        raise ValueError('needs a "name"')
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be an object')
    check_portable([name, arguments], MAX_DEPTH)
    return name, arguments


def check_portable(value: Any, depth: int) -> None:
    """Raise `ValueError` for JSON values that cannot be passed on to the environment."""
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError("half a surrogate pair")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number is too large")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_portable(key, depth)
            check_portable(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            check_portable(item, depth - 1)
