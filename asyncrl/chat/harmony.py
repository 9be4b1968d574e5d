"""gpt-oss's response format (harmony), read from text.

A turn is a row of messages `<|start|>assistant<|channel|>CHANNEL to=RECIPIENT <|constrain|>TYPE<|message|>BODY` that
end with `<|end|>`, `<|call|>` or `<|return|>`; the generation prompt has written the first `<|start|>assistant`. The
channel `analysis` is reasoning; `final`, and `commentary` to nobody, is what the user reads; a recipient
`functions.NAME` makes it a call.

vLLM's own parser needs the encoding `o200k_harmony`, which it downloads when it is first used; the format is plain
enough to be read without it.
"""

from __future__ import annotations

import re
from typing import Any

from asyncrl.chat.tool_calls import Malformed, Tools, collect, decode_json
from asyncrl.env.protocol import Action

_MESSAGE = "<|message|>"
_ENDS = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def parse_harmony(text: str, tools: Tools = ()) -> Action:
    """Read a turn of gpt-oss. A header names the recipient before or after the channel, as these models do."""
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[Any] = []
    if "<|channel|>" not in text:
        return Action(text.strip())
    for part in filter(str.strip, _ENDS.split(text)):
        header, found, body = part.partition(_MESSAGE)
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None:
            calls.append(_call(recipient[1], body) if found else Malformed(f"{_MESSAGE} is missing"))
        elif channel is not None and channel[1] == "analysis":
            reasoning.append(body.strip())
        else:
            content.append((body if found else part).strip())
    action = collect("\n".join(content), calls)
    return Action(action.content, action.tool_calls, action.parse_errors, "\n".join(reasoning))


def split_harmony(text: str) -> tuple[str, str]:
    """Split a turn in its reasoning and what the user reads."""
    action = parse_harmony(text)
    return action.reasoning, action.content


def _call(recipient: str, body: str) -> Any:
    namespace, _, name = recipient.rpartition(".")
    if namespace != "functions" or not name:
        return Malformed(f"there is no recipient {recipient!r}; functions are called as functions.NAME")
    return {"name": name, "arguments": decode_json(body)}
