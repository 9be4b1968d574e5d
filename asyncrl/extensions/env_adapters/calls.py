"""Messages and tool calls in the forms that the adapters need."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from asyncrl.env.protocol import Action, ToolCall, tool_call_id
from asyncrl.together import together
from asyncrl.types import Message

Caller = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Makes one call by name and arguments; returns what the model is told."""


class CallRefused(Exception):
    """A call that failed by the model's own doing; the text is what the model is told."""


def tool_schema(name: str, description: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in the form chat templates take."""
    function = {"name": name, "description": description or "", "parameters": parameters}
    return {"type": "function", "function": function}


def assistant_message(action: Action, arguments_as_text: bool = False) -> Message:
    """Return the turn as a chat message; OpenAI's own format has the arguments of a call as JSON text."""
    message: Message = {"role": "assistant", "content": action.content}
    if action.tool_calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or tool_call_id(i),
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments) if arguments_as_text else call.arguments,
                },
            }
            for i, call in enumerate(action.tool_calls)
        ]
    return message


async def answer_calls(action: Action, names: Collection[str], call: Caller) -> list[Message]:
    """Make all calls of a turn at once; return one tool message per call, in order, and one per malformed call."""

    async def one(made: ToolCall) -> str:
        if made.name not in names:
            return f"error: no tool {made.name!r}; there are {', '.join(names) or 'none'}"
        try:
            return await call(made.name, made.arguments)
        except CallRefused as error:
            return f"error: {error}"

    results = await together(one(made) for made in action.tool_calls)
    messages: list[Message] = [
        {"role": "tool", "name": made.name, "tool_call_id": made.id, "content": result}
        for made, result in zip(action.tool_calls, results, strict=True)
    ]
    return messages + action.error_messages()


def plain(messages: list[Message]) -> list[Message]:
    """Return the messages in the form chat templates accept: content is text."""
    plain = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part.get("text") or f"[{part.get('type')}]" for part in content)
        plain.append({**message, "content": "" if content is None else content})
    return plain


def same_message(message: Message) -> tuple[Any, ...]:
    """Return what two forms of the same message have in common: role, text, and the calls."""
    content = plain([message])[0]["content"].strip()
    calls = tuple(
        (
            call["function"]["name"],
            json.dumps(json.loads(call["function"]["arguments"] or "{}"), sort_keys=True),
        )
        for call in message.get("tool_calls") or ()
    )
    return message["role"], content, calls


def row_data(row: int, split: str, own: bool) -> dict[str, Any]:
    """Return the data of a task that is a row. own: whether the held-out split has a data set of its own, in which the
    same number is another row."""
    return {"row": row, **({"of": split} if own and split == "heldout" else {})}
