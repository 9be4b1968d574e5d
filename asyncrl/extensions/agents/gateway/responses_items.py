"""Items of `/v1/responses` as chat messages, and the calls of an answer as items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.env.protocol import ToolCall
from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.chat_history import SHOWN_TO, content_of, text_of
from asyncrl.extensions.agents.gateway.exchange import arguments_text
from asyncrl.extensions.agents.gateway.wire_tools import (
    CUSTOM,
    CUSTOM_INPUT,
    FUNCTION,
    LOCAL_SHELL,
    SHELL,
    TOOL_SEARCH,
    WireTools,
    read_responses_tools,
)

Item = dict[str, Any]
_CALLS = {
    "function_call": FUNCTION,
    "custom_tool_call": CUSTOM,
    "local_shell_call": LOCAL_SHELL,
    "shell_call": SHELL,
    "tool_search_call": TOOL_SEARCH,
}
_OUTPUTS = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "tool_search_output",
)


def resolve_references(items: Sequence[Item], known: Mapping[str, Item]) -> tuple[list[Item], list[str]]:
    """Return the items with those that are only named by id in their places, and what was left out.

    known: items that the episode has answered with, by id. One that it has not, such as another server's, is left out.
    """
    found: list[Item] = []
    dropped: list[str] = []
    for item in items:
        if item.get("type") != "item_reference":
            found.append(item)
        elif (referred := known.get(str(item.get("id")))) is not None:
            found.append(referred)
        else:
            dropped.append("unknown item_reference")
    return found, dropped


def read_items(items: Sequence[Item], tools: WireTools) -> tuple[list[dict[str, Any]], list[str]]:
    """Return items as chat messages, and the kinds of those that were left out, for counting.

    What one turn said comes as several items: its text and each of its calls, in either order. Tools that a search of
    the client has found are named back as those of the request are. Raises `InputError` naming the field.
    """
    reader = _Reader(tools)
    for number, item in enumerate(items):
        reader.read(item, f"input[{number}]")
    return reader.chat, reader.dropped


class _Reader:
    def __init__(self, tools: WireTools) -> None:
        self.tools = tools
        self.chat: list[dict[str, Any]] = []
        self.dropped: list[str] = []
        self.turn_open = False
        """Whether the last message is a turn that goes on with the next call, or with its text."""

    def read(self, item: Item, where: str) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, where)
        elif kind in _CALLS:
            self._call(item, _CALLS[kind])
        elif kind in _OUTPUTS:
            self._output(item, where)
        elif not isinstance(kind, str):
            raise InputError(f"{where}.type: must be a text, got {str(kind)[:100]!r}")
        elif kind != "reasoning":
            self.dropped.append(f"item {kind[:40]}")

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        read = content_of if role in SHOWN_TO else text_of
        content = read(item.get("content"), f"{where}.content")
        if role == "assistant" and self.turn_open and self.chat[-1].get("tool_calls"):
            # LiteLLM sends a turn's calls before its text. Nothing has answered them, so the turn is the same.
            before = self.chat[-1]["content"]
            self.chat[-1]["content"] = f"{before}\n{content}" if before else content
            return
        self.chat.append({"role": role, "content": content})
        self.turn_open = role == "assistant"

    def _call(self, item: Item, kind: str) -> None:
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        if kind == FUNCTION:
            function["name"] = self.tools.flat(item.get("name"), item.get("namespace"))
        elif kind == CUSTOM:
            function["name"] = self.tools.flat(item.get("name"), item.get("namespace"))
            function["arguments"] = {CUSTOM_INPUT: item.get("input")}
        elif kind in (LOCAL_SHELL, SHELL):
            action = item.get("action")
            given = action if isinstance(action, dict) else {}
            # What was left out when it was called comes back as null or empty.
            said = {k: v for k, v in given.items() if k != "type" and v not in (None, {})}
            function = {"name": kind, "arguments": said}
        else:
            function = {"name": TOOL_SEARCH, "arguments": item.get("arguments")}
        call = {"id": item.get("call_id") or item.get("id"), "type": "function", "function": function}
        if not self.turn_open:
            self.chat.append({"role": "assistant", "content": ""})
            self.turn_open = True
        self.chat[-1].setdefault("tool_calls", []).append(call)

    def _output(self, item: Item, where: str) -> None:
        if item["type"] == "tool_search_output":
            content: Any = json.dumps(self._found(item.get("tools")))
        elif item["type"] == "shell_call_output":
            content = json.dumps(item.get("output"))
        else:
            content = content_of(item.get("output"), f"{where}.output")
        call_id = item.get("call_id") or item.get("id")
        self.chat.append({"role": "tool", "tool_call_id": call_id, "content": content})
        self.turn_open = False

    def _found(self, raw: Any) -> list[dict[str, Any]]:
        """Return the functions among the tools that a search has found, and have them named back when they are called.

        The list of tools in the prompt stays as it was: the conversation goes on with the tokens that it has.
        """
        found = read_responses_tools(raw if isinstance(raw, list) else [])
        for name, tool in found.names.items():
            self.tools.names.setdefault(name, tool)
        self.dropped += found.dropped
        return found.functions


def call_item(call: ToolCall, wire_id: str, status: str, tools: WireTools) -> Item:
    """Return one call of an answer as the item that its client reads."""
    tool = tools.of(call.name)
    if tool.kind == CUSTOM:
        text = call.arguments.get(CUSTOM_INPUT, "")
        given = text if isinstance(text, str) else json.dumps(text)
        item: Item = {
            "type": "custom_tool_call",
            "id": f"ctc_{wire_id}",
            "call_id": wire_id,
            "name": tool.name,
        }
        item |= {"input": given, "status": status}
    elif tool.kind in (LOCAL_SHELL, SHELL):
        action = {"type": "exec", **call.arguments} if tool.kind == LOCAL_SHELL else dict(call.arguments)
        if tool.kind == LOCAL_SHELL:
            action = {"env": {}, "command": [], **action}
        item = {
            "type": f"{tool.kind}_call",
            "id": f"sh_{wire_id}",
            "call_id": wire_id,
            "action": action,
            "status": status,
        }
    elif tool.kind == TOOL_SEARCH:
        item = {"type": "tool_search_call", "id": f"ts_{wire_id}", "call_id": wire_id, "execution": "client"}
        item |= {"arguments": call.arguments, "status": status}
    else:
        item = {"type": "function_call", "id": f"fc_{wire_id}", "call_id": wire_id, "name": tool.name}
        item |= {"arguments": arguments_text(call.arguments), "status": status}
    return {**item, "namespace": tool.namespace} if tool.namespace else item
