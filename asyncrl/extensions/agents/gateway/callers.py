"""Which tool call started a conversation, where the client does not say so: a sub-agent is told what its caller wrote.

The rule is strict, because a wrong parent is worse than none. A conversation that opens without any turn of an
assistant was started by a recorded turn if an argument of one of that turn's tool calls, a text of `MIN_CHARACTERS` or
more, stands whole in the opening, if nothing has continued that turn, and if its own conversation had not held that
text before. Where this holds for more than one turn, none is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from asyncrl.extensions.agents.gateway.tree import Call, CallTree, path
from asyncrl.types import Message

MIN_CHARACTERS = 20
"""Shorter texts, such as names and numbers, are found in many openings by chance."""


def caller_by_words(tree: CallTree, opening: Sequence[Message]) -> Call | None:
    """Return the call whose turn started the conversation; None where its words do not show one."""
    if any(message["role"] == "assistant" for message in opening):
        return None
    told = [text for message in opening for text in _texts(message["content"])]
    found = [call for call in tree.calls if call.tool_ids and not call.num_children and _told(call, told)]
    return found[0] if len(found) == 1 else None


def _told(call: Call, told: Sequence[str]) -> bool:
    """Return True if what the turn wrote in a tool call, and nobody before it, is in one of these texts."""
    *before, said = [message for one in path(call) for message in one.messages]
    known = [text for message in before for text in _texts(message["content"])]
    for made in said.get("tool_calls", ()):
        for text in _arguments(made["function"]["arguments"]):
            if any(text in one for one in told) and not any(text in one for one in known):
                return True
    return False


def _arguments(arguments: Any) -> Iterator[str]:
    """Yield the texts among a call's arguments that are long enough, however deep they stand."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return
    waiting = list(arguments.values()) if isinstance(arguments, dict) else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value.strip()) >= MIN_CHARACTERS:
            yield value.strip()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if isinstance(part, dict) and "text" in part)
