"""Messages from any client in one form, and the keys by which a recorded conversation is found again.

Clients return messages with small changes: `null` for empty text, other spacing in JSON arguments,
text as a list of parts, new fields, no reasoning. The key of an assistant message therefore covers only what
the model said: its stripped text and its calls. Messages that hold images are compared part by part. Ids of tool calls
are replaced by their position, so that equal conversations render to equal tokens; the ids themselves only choose
between conversations that read the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from asyncrl.chat.template_traits import join_texts
from asyncrl.chat.tool_calls import MAX_DEPTH, check_portable
from asyncrl.env.protocol import tool_call_id
from asyncrl.env.tool_schemas import check_function, check_parameters
from asyncrl.errors import InputError
from asyncrl.images import read_image
from asyncrl.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 8192
TEXT_PARTS = ("text", "input_text", "output_text")
IMAGE_PARTS = ("image_url", "input_image")
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
"""The types of JSON schema."""
SHOWN_TO = ("user", "tool")
"""Roles whose messages may hold images."""


@dataclass(frozen=True, slots=True)
class ChatHistory:
    """Messages as chat templates take them, and what is needed to find their beginning in a tree."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    call_ids: list[tuple[str, ...]]
    """Per message, the ids its tool calls had on the wire."""
    prefill: str = ""
    """The beginning of the answer, which goes on from there."""

    keys: list[bytes] = field(init=False)
    """Per message, the key of the conversation up to it."""

    def __post_init__(self) -> None:
        keys, key = [], root_key(self.tools)
        for message in self.messages:
            key = extend_key(key, message)
            keys.append(key)
        object.__setattr__(self, "keys", keys)

    def prefixes(self) -> list[tuple[int, bytes]]:
        """(k, key of the first k messages) for every prefix that ends with an assistant message, longest first."""
        ends = [number for number, message in enumerate(self.messages) if message["role"] == "assistant"]
        return [(number + 1, self.keys[number]) for number in reversed(ends)]

    def key(self) -> bytes:
        """Key of the whole conversation."""
        return self.keys[-1]


def root_key(tools: Sequence[dict[str, Any]]) -> bytes:
    """Key of the empty conversation with these tools: the template writes them before any message."""
    return _digest(b"", _canonical(tools) if tools else "")


def extend_key(key: bytes, message: Message) -> bytes:
    """Key of a conversation continued by `message`."""
    content, kind = message["content"], "text"
    if isinstance(content, list):
        content, kind = _canonical(content), "parts"
    content = content.strip()
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
    # The length keeps content apart from calls, whatever it holds.
    return _digest(
        key, f"{message['role']} {kind} {len(content)} {content}{_canonical(calls) if calls else ''}"
    )


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(before: bytes, text: str) -> bytes:
    return hashlib.blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def read_chat_history(
    raw_messages: Any, tools: list[dict[str, Any]], continue_last: bool = False
) -> ChatHistory:
    """Read messages as `/v1/chat/completions` has them. Raises `InputError` naming the place.

    tools: as chat templates take them. continue_last: the last message, if it is the assistant's and calls nothing, is
    the beginning of the answer.
    """
    if not isinstance(raw_messages, list) or not 0 < len(raw_messages) <= MAX_MESSAGES:
        raise InputError(f"messages: must be a list of 1 to {MAX_MESSAGES} messages")
    positions: dict[str, str] = {}
    messages, call_ids = [], []
    for number, raw in enumerate(raw_messages):
        where = f"messages[{number}]"
        if not isinstance(raw, dict) or raw.get("role") not in ROLES:
            role = raw.get("role") if isinstance(raw, dict) else raw
            raise InputError(f"{where}.role: must be one of {', '.join(ROLES)}, got {role!r}")
        role = "system" if raw["role"] == "developer" else raw["role"]
        read = content_of if role in SHOWN_TO else text_of
        message: Message = {"role": role, "content": read(raw.get("content"), f"{where}.content")}
        ids: list[str] = []
        if role == "assistant" and isinstance(raw.get("reasoning_content"), str):
            message["reasoning_content"] = raw["reasoning_content"]
        if role == "assistant" and raw.get("tool_calls"):
            message["tool_calls"] = _tool_calls(raw["tool_calls"], f"{where}.tool_calls", ids, positions)
        if role == "tool":
            wire_id = str(raw.get("tool_call_id", ""))
            message["tool_call_id"] = positions.get(wire_id, wire_id)
            if raw.get("name"):
                message["name"] = str(raw["name"])
        messages.append(message)
        call_ids.append(tuple(ids))
    last = messages[-1]
    if not continue_last or last["role"] != "assistant" or last.get("tool_calls") or len(messages) == 1:
        return ChatHistory(messages, tools, call_ids)
    return ChatHistory(messages[:-1], tools, call_ids[:-1], last["content"])


def function_tool(raw: dict[str, Any], where: str, schema_field: str) -> dict[str, Any]:
    """One tool as chat templates take it, from the `name`, `description` and schema of any API's form.

    Raises `InputError` naming the field below `where`.
    """
    name, description, parameters = raw.get("name"), raw.get("description"), raw.get(schema_field)
    parameters = _whole_schema(parameters)
    try:
        check_function(name, description, where)
        check_parameters(parameters, f"{where}.{schema_field}")
    except ValueError as error:
        raise InputError(str(error)) from None
    schema = dict(parameters or {"type": "object"})
    schema["properties"] = schema.get("properties") or {}
    if schema.get("required", ()) is None:
        del schema["required"]
    function = {"name": name, "description": str(description or ""), "parameters": schema}
    return {"type": "function", "function": function}


def _whole_schema(parameters: Any) -> Any:
    """Return the schema of a tool's arguments with one for each property that its client only names the type of."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict) or all(isinstance(one, dict | bool) for one in properties.values()):
        return parameters
    whole = {
        name: ({"type": one} if one in TYPES else {})
        if isinstance(one, str)
        else {}
        if isinstance(one, list)
        else one
        for name, one in properties.items()
    }
    return {**parameters, "properties": whole}


def text_of(content: Any, where: str) -> str:
    """Text of a `content` field: a string, null, or a list of text parts. Raises `InputError` for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InputError(f"{where}: must be a string or a list of parts, got {type(content).__name__}")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise InputError(f"{where}[{number}]: only text parts are supported, got {kind!r}")
        texts.append(part["text"])
    return join_texts(texts)


def content_of(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Content of a message that may show images: text, or a list of parts if it does. Raises `InputError`."""
    if not isinstance(content, list) or not any(_shows(part) for part in content):
        return text_of(content, where)
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        if _shows(part):
            read_image(part, f"{where}[{number}]")
            url = part["image_url"]
            parts.append(
                {"type": "image_url", "image_url": {"url": url if isinstance(url, str) else url["url"]}}
            )
        else:
            parts.append({"type": "text", "text": text_of([part], where)})
    return parts


def _shows(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in IMAGE_PARTS


def read_arguments(raw: Any) -> Any:
    """Arguments of a call as an object; what is no JSON, or more than the model's own calls may hold, stays text.

    Calls without arguments come as "", null or "null".
    """
    if not isinstance(raw, str):
        return raw if isinstance(raw, dict) else {}
    if raw.strip() in ("", "null"):
        return {}
    try:
        arguments = json.loads(raw)
        check_portable(arguments, MAX_DEPTH)
    except (ValueError, RecursionError):
        return raw
    return arguments


def tool_call(position: int, name: str, arguments: Any) -> dict[str, Any]:
    """One call of an assistant message as chat templates take it."""
    return {
        "type": "function",
        "id": tool_call_id(position),
        "function": {"name": name, "arguments": arguments},
    }


def _tool_calls(raw: Any, where: str, ids: list[str], positions: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(raw, list):
        raise InputError(f"{where}: must be a list, got {type(raw).__name__}")
    calls = []
    for position, call in enumerate(raw):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(call, dict) and isinstance(custom := call.get("custom"), dict):
            function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError(f"{where}[{position}]: must have a function with a name")
        made = tool_call(position, function["name"], read_arguments(function.get("arguments")))
        ids.append(str(call.get("id", "")))
        positions[ids[-1]] = made["id"]
        calls.append(made)
    return calls
