"""The conversation as a judge reads it: text of the policy that cannot pass for anything else.

    [user] What is 6 times 7?
    [assistant, turn 1] It is
    | 42.
    [assistant calls] [{"name": "calculator", "arguments": {"expression": "6*7"}}]

A role stands in brackets at the beginning of a line. Every further line of a message begins with "| ", so that no text
begins a message of its own. Characters that are not seen, and those by which chat templates begin and end messages, are
written out. What is too long is cut in the middle, with a note on a line that no message can have.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence

from asyncrl.data.transcript import content_text
from asyncrl.types import Message

LEAST_CHARACTERS = 200
"""Characters of a message that are always shown."""
_JOINERS = ("\u200c", "\u200d")
"""Not seen either, but part of how Persian, Hindi and emoji are written."""
_SPECIAL = re.compile(
    r"<(?=[|｜]|/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|think|im_start|im_end)>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
"""The first character of what begins or ends a message in chat templates. An engine reads it as a single token wherever
it stands."""
_UNUSUAL = re.compile(r"[^\x20-\x7e\t]")


def whole_messages(messages: Sequence[Message], transcript: str) -> tuple[list[Message], dict[int, int]]:
    """Return an episode's messages with all that the policy wrote, and the turn that each of them is, by its place.

    messages: as the environment's side has them: malformed calls are left out, and a turn that was cut off.
    transcript: as it is stored with the trajectory (`data.transcript`), which has both; "" adds nothing.
    """
    found, turns = list(messages), dict[int, int]()
    for place, item in enumerate(json.loads(transcript) if transcript else ()):
        if (turn := item.get("turn")) is None:
            continue
        turns[place] = int(turn)
        if place >= len(found):
            found.append({"role": "assistant", "content": item["content"]})
        elif item["content"] != content_text(found[place].get("content")):
            found[place] = {**found[place], "content": item["content"]}
    return found, turns


def shown_conversation(
    messages: Sequence[Message], turns: Mapping[int, int], max_characters: int, numbered: bool = False
) -> str:
    """Return the conversation as text of about `max_characters` at most.

    turns: the turn that a message is, by its place. numbered: whether turns have their number, counted from 1.
    """
    texts = [visible(content_text(message.get("content"))) for message in messages]
    calls = [_calls(message) for message in messages]
    limit = level([len(text) for text in (*texts, *calls)], max_characters)
    lines = []
    for place, (message, text, call) in enumerate(zip(messages, texts, calls, strict=True)):
        role = visible(str(message["role"])).partition("\n")[0]
        turn = f", turn {turns[place] + 1}" if numbered and place in turns else ""
        lines.append(f"[{role}{turn}] {_cut(text, limit)}")
        if call:
            lines.append(f"[{role} calls] {_cut(call, limit)}")
    return "\n".join(lines)


def visible(text: str) -> str:
    """Return a text whose further lines begin with "| ", with all that is not seen, or special, written out."""
    lines = unspecial(text).splitlines() or [""]
    return "\n| ".join(_UNUSUAL.sub(lambda found: _character(found.group()), line) for line in lines)


def unspecial(text: str) -> str:
    """Return a text in which nothing begins or ends a message of a chat template."""
    return _SPECIAL.sub(lambda found: f"{found.group()} ", text)


def level(lengths: Sequence[int], total: int) -> int:
    """Return the length to which texts are cut so that together they have at most `total` characters, as far as each
    may be cut: the shorter ones stay whole."""
    left, limit = total, total
    for place, length in enumerate(sorted(lengths)):
        limit = left // (len(lengths) - place)
        if length > limit:
            break
        left -= length
    return max(limit, LEAST_CHARACTERS)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    # What follows the note begins a line, and must not begin it as a role does.
    return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out here]\n| {text[-half:]}"


def _character(one: str) -> str:
    if one in _JOINERS:
        return one
    hidden = unicodedata.category(one) in ("Cc", "Cf", "Co", "Cs", "Cn") or 0xE0100 <= ord(one) <= 0xE01EF
    return f"<U+{ord(one):04X}>" if hidden else one


def _calls(message: Message) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return visible(json.dumps(calls, default=str)) if calls else ""
