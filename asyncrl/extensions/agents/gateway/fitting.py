"""Messages of any client in the roles and the order that a chat template takes.

Agents send what their vendors' models take: several system messages, system messages between turns, several messages
of the user in a row. Many templates raise an error for one of these, and others leave it out without a word.
"""

from __future__ import annotations

from typing import Any

from asyncrl.chat.template_traits import (
    LATER_SYSTEM,
    ONLY_SYSTEM,
    SYSTEM,
    TWO_USERS,
    USER_AFTER_RESULT,
    Traits,
)
from asyncrl.types import Message

BETWEEN = "\n\n"
"""Between the texts of messages that become one."""


def fit_messages(messages: list[Message], traits: Traits, opening: bool) -> list[Message]:
    """Return messages with the same words that the template shows.

    Leading system messages become one, and the user's where the template takes none. One that comes later stays where
    the template shows it there, and is a message of the user where not. Messages of the user in a row, and such ones
    after a result, become one where the template refuses or drops them. opening: the conversation begins with them.
    """
    fitted = _leading(messages, traits) if opening else list(messages)
    first = 1 if opening and fitted and fitted[0]["role"] == "system" else 0
    if traits.lacks(LATER_SYSTEM):
        fitted[first:] = [_as_user(message) for message in fitted[first:]]
    if not (traits.lacks(TWO_USERS) or traits.lacks(USER_AFTER_RESULT)):
        return fitted
    found: list[Message] = []
    for message in fitted:
        before = found[-1]["role"] if found else ""
        joins = (before == "user" and traits.lacks(TWO_USERS)) or (
            before == "tool" and traits.lacks(USER_AFTER_RESULT)
        )
        if message["role"] == "user" and joins:
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)
    return found


def _leading(messages: list[Message], traits: Traits) -> list[Message]:
    count = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if not count:
        return list(messages)
    rest = messages[count:]
    leading = messages[:count]
    if not rest and count > 1 and traits.lacks(ONLY_SYSTEM):
        leading, rest = leading[:-1], [_as_user(leading[-1])]
    merged = leading[0]
    for message in leading[1:]:
        merged = _joined(merged, message)
    if traits.lacks(SYSTEM) or (not rest and traits.lacks(ONLY_SYSTEM)):
        merged = _as_user(merged)
        if rest and rest[0]["role"] == "user":
            return [_joined(merged, rest[0]), *rest[1:]]
    return [merged, *rest]


def _as_user(message: Message) -> Message:
    return {"role": "user", "content": message["content"]} if message["role"] == "system" else message


def _joined(first: Message, second: Message) -> Message:
    """Return the first message with the words of the second behind its own."""
    one, other = first["content"], second["content"]
    if isinstance(one, str) and isinstance(other, str):
        return {**first, "content": f"{one}{BETWEEN}{other}" if one and other else one or other}
    return {**first, "content": [*_parts(one), *_parts(other)]}


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
