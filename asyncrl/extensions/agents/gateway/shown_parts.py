"""Parts of messages that the policy cannot read, as texts that say so: an agent that shows a picture goes on.

A refusal would end the episode, and with it a policy could leave any task that it is losing.
"""

from __future__ import annotations

from typing import Any

from asyncrl.chat.template_traits import join_texts
from asyncrl.extensions.agents.gateway.chat_history import IMAGE_PARTS, SHOWN_TO, TEXT_PARTS

IMAGES = (*IMAGE_PARTS, "image")
KEPT = (*TEXT_PARTS, "tool_use", "tool_result", "thinking", "redacted_thinking", "refusal")
_HELD = ("content", "output")
"""Fields of messages and items that hold parts."""
_LEVELS = 3
"""A message, a result in it, and its parts."""


def shown_parts(body: dict[str, Any], reads_images: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a request with a text for each part that the model cannot read, and what these parts were, for counting.

    reads_images: pictures of users and tools stay. What is no part at all is left to the reader of the format.
    """
    dropped: list[str] = []
    changed = dict(body)
    for name in ("messages", "input"):
        if isinstance(body.get(name), list):
            changed[name] = [_holder(one, reads_images, dropped, _LEVELS) for one in body[name]]
    for name in ("system", "instructions"):
        if isinstance(body.get(name), list):
            changed[name] = _parts(body[name], False, dropped, _LEVELS)
    return (changed if changed != body else body), tuple(dropped)


def _holder(holder: Any, reads_images: bool, dropped: list[str], levels: int) -> Any:
    if not isinstance(holder, dict):
        return holder
    # Items of `/v1/responses` that carry results have no role.
    images = reads_images and holder.get("role", "tool") in SHOWN_TO
    found = {
        name: _parts(holder[name], images, dropped, levels - 1)
        for name in _HELD
        if isinstance(holder.get(name), list)
    }
    return {**holder, **found} if found else holder


def _parts(parts: list[Any], images: bool, dropped: list[str], levels: int) -> list[Any]:
    return [_part(part, images, dropped, levels) for part in parts]


def _part(part: Any, images: bool, dropped: list[str], levels: int) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or levels < 0:
        return part
    if kind == "tool_result":
        return _holder(part, images, dropped, levels) | {"type": kind}
    if kind == "refusal":
        return {"type": "text", "text": str(part.get("refusal") or "")}
    if kind in KEPT or (kind in IMAGES and images):
        return part
    if kind in IMAGES:
        dropped.append("image")
        return {"type": "text", "text": "[image: this model reads text]"}
    if (text := _text_of(part)) is not None:
        return {"type": "text", "text": text}
    dropped.append(f"part {kind[:40]}")
    return {"type": "text", "text": f"[{kind[:40]}: this model reads text]"}


def _text_of(part: dict[str, Any]) -> str | None:
    """Return the text of a document or search result that is one, with its title; None for others, such as a PDF."""
    source = part.get("source") if part["type"] == "document" else {**part, "type": "content"}
    if part["type"] not in ("document", "search_result") or not isinstance(source, dict):
        return None
    held = source.get("data") if source.get("type") == "text" else source.get("content")
    if isinstance(held, list):
        texts = [
            str(one["text"]) for one in held if isinstance(one, dict) and isinstance(one.get("text"), str)
        ]
        held = join_texts(texts) if len(texts) == len(held) else None
    if not isinstance(held, str):
        return None
    title = part.get("title")
    return f"{title}\n{held}" if isinstance(title, str) and title else held
