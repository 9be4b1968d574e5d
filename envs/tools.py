"""Tools offered to a model: schemas, argument checks, and answers to the calls of one turn."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from asyncrl.env.protocol import Action, ToolCall, tool_call_id
from asyncrl.together import together
from asyncrl.types import Message

Handler = Callable[..., str | Awaitable[str]]
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}


class ToolError(Exception):
    """A call that cannot be carried out; its text is the answer to the model."""


def schema(name: str, description: str, /, **parameters: str) -> dict[str, Any]:
    """Return the JSON schema of a tool in the form chat templates accept.

    `parameters` maps names to "string", "integer" or "number"; a trailing "?" makes one optional.
    """
    properties = {key: {"type": kind.rstrip("?")} for key, kind in parameters.items()}
    required = [key for key, kind in parameters.items() if not kind.endswith("?")]
    function = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    return {"type": "function", "function": function}


async def answer_calls(
    action: Action, tools: list[dict[str, Any]], handlers: Mapping[str, Handler]
) -> list[Message]:
    """Return one tool message per call, in order, and one per malformed call. All calls run concurrently.

    A handler may be async. The model's mistakes (an unknown tool, wrong arguments, `ToolError`) become messages;
    other exceptions of a handler are the environment's failure and propagate.
    """
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    results = await together(_answer(call, schemas, handlers) for call in action.tool_calls)
    messages: list[Message] = [
        {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": result}
        for call, result in zip(action.tool_calls, results, strict=True)
    ]
    return messages + action.error_messages()


def call_message(*calls: tuple[str, dict[str, Any]]) -> Message:
    """Return the assistant message that makes these calls (name, arguments)."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    tool_calls = [
        {"type": "function", "id": tool_call_id(i), "function": function}
        for i, function in enumerate(functions)
    ]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls}


def say(content: str) -> Message:
    """Return an assistant message without calls."""
    return {"role": "assistant", "content": content}


async def _answer(call: ToolCall, schemas: Mapping[str, Any], handlers: Mapping[str, Handler]) -> str:
    if call.name not in schemas:
        return f"error: no tool {call.name!r}; there are {', '.join(schemas)}"
    if problem := _problem(call.arguments, schemas[call.name]):
        return f"error: {call.name}: {problem}"
    try:
        result = handlers[call.name](**call.arguments)
        return await result if inspect.isawaitable(result) else result
    except ToolError as error:
        return f"error: {error}"


def _problem(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Return what is wrong with a call's arguments, or an empty text."""
    properties = parameters["properties"]
    for name in parameters["required"]:
        if name not in arguments:
            return f"argument {name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name!r}; there are {', '.join(properties) or 'none'}"
        kind = properties[name]["type"]
        if not isinstance(value, TYPES[kind]) or isinstance(value, bool):
            return f"argument {name!r} must be of type {kind}, got {value!r:.60}"
        if isinstance(value, str) and not _is_unicode(value):
            return f"argument {name!r} is no valid text, got {value!r:.60}"
    return ""


def _is_unicode(text: str) -> bool:
    """Return False for text with half of a surrogate pair, which JSON accepts and tokenizers do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
