"""The transcript of an episode: its messages as text that is stored with its tokens, for people to read.

JSON: a list of messages, each `{"role", "content"}` and, where present, `tool_calls` (`{"id", "name", "arguments"}`,
the arguments as JSON text), `tool_call_id`, `name`, `reasoning_content` and `turn`, the index of the trajectory's turn
that the message is. Only tokens are trained on; nothing is read back from this text, so no process between worker and
file parses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.types import Message

MAX_CHARACTERS = 2**24
"""Most characters of one transcript."""
_TEXTS = ("tool_call_id", "name", "reasoning_content")


def encode_transcript(messages: Sequence[Message], turns: Mapping[int, int]) -> str:
    """Return the transcript of messages; `turns` maps the position of a message to the index of its turn.

    "" for a transcript longer than `MAX_CHARACTERS`.
    """
    items = []
    for place, message in enumerate(messages):
        item: dict[str, Any] = {
            "role": str(message.get("role")),
            "content": content_text(message.get("content")),
        }
        if calls := message.get("tool_calls"):
            item["tool_calls"] = [_call(call) for call in calls]
        item |= {name: str(message[name]) for name in _TEXTS if message.get(name)}
        if place in turns:
            item["turn"] = turns[place]
        items.append(item)
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":"))
    if not text.isascii():
        # Arguments of calls can hold half a surrogate pair, which no message can encode.
        text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_CHARACTERS else ""


def read_transcript(text: str, rewards: Sequence[float]) -> list[dict[str, Any]] | None:
    """Return the messages, each with the reward of its turn; None for an empty or unreadable transcript."""
    try:
        return [_read(item, rewards) for item in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        return None


def image_mark(key: str) -> str:
    """Return what stands in a transcript for an image; the trajectory's `images` have its file under that key."""
    return f"[image {key}]"


def content_text(content: Any) -> str:
    """Return a message's content as text, with a mark for each image."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        from asyncrl.images import is_image

        if any(is_image(part) for part in content):
            return "\n".join(_part(part) for part in content)
    return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)


def _part(part: Any) -> str:
    from asyncrl.images import image_key, is_image, read_image

    if is_image(part):
        return image_mark(image_key(read_image(part, "content")))
    return str(part["text"]) if isinstance(part, dict) and "text" in part else content_text(part)


def _call(call: Mapping[str, Any]) -> dict[str, str]:
    function = call.get("function") or {}
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return {"id": str(call.get("id", "")), "name": str(function.get("name", "")), "arguments": text}


def _read(item: Mapping[str, Any], rewards: Sequence[float]) -> dict[str, Any]:
    turn = item.get("turn")
    return {
        "role": str(item["role"]),
        "content": str(item["content"]),
        "tool_calls": [
            {name: str(call[name]) for name in ("id", "name", "arguments")}
            for call in item.get("tool_calls", ())
        ],
        **{name: str(item[name]) if name in item else None for name in _TEXTS},
        "turn": turn,
        "reward": None if turn is None else float(rewards[turn]),
    }
