"""What a chat template shows of a conversation, found by rendering probes and looking for their words.

Templates drop what they do not know without a word: tools, the results of calls, a system message that comes later,
content in parts. An episode whose policy never saw its tools or their results would be trained all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from asyncrl.env.protocol import tool_call_id
from asyncrl.types import Message

Tools = list[dict[str, Any]]
Render = Callable[[list[Message], Tools | None, bool], str]
"""Messages, tools, and whether the generation prompt follows, to text. Raises whatever the template raises."""

TOOLS, TOOL_PARAMETERS = "tools", "parameters of tools"
CALLS, BARE_CALLS = "calls", "calls without arguments"
RESULT, RESULTS = "the result of a call", "the results of two calls"
TEXT, SYSTEM, LATER_SYSTEM, TWO_SYSTEM = (
    "text", "a system message", "a system message after the first messages", "two system messages",
)  # fmt: skip
TWO_USERS, USER_AFTER_RESULT = "two messages of the user", "a message of the user after a result"
ONLY_SYSTEM = "a system message alone"
REASONING = "reasoning"
NEEDED_BY_TOOLS = (TOOLS, RESULT)
"""What a task with tools cannot be played without."""
_ASK, _SAY, _TOLD, _MORE = "asyncrlask", "asyncrlsay", "asyncrltold", "asyncrlmore"
_TOOL, _PARAMETER, _ARGUMENT = "asyncrltool", "asyncrlparameter", "asyncrlargument"
_FIRST, _SECOND, _END = "asyncrlresultone", "asyncrlresulttwo", "asyncrlresultend"
_LONG = f"{_FIRST} {'and so on ' * 200}{_END}"
"""A result of the length that tools give: some templates cut it."""
USER: Message = {"role": "user", "content": _ASK}
PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _TOOL,
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {_PARAMETER: {"type": "string", "description": "What."}},
            "required": [_PARAMETER],
        },
    },
}


@dataclass(frozen=True, slots=True)
class Traits:
    """How a template wants messages written, and what it does not show."""

    text_in_parts: bool = False
    """Text is shown in parts alone, as by templates of vision models."""
    parts_joined: bool = False
    """Text is shown as one string alone."""
    no_content: bool = False
    """Calls are shown only where the content beside them is null."""
    dropped: dict[str, str] = field(default_factory=dict)
    """What the template leaves out without a word, and how that was seen."""
    refused: dict[str, str] = field(default_factory=dict)
    """What it raises an error for, and the error."""

    def lacks(self, feature: str) -> str:
        """Return why the template does not show it; "" where it does."""
        if feature in self.dropped:
            return f"the chat template does not show {feature}: {self.dropped[feature]}"
        if feature in self.refused:
            return f"the chat template refuses {feature}: {self.refused[feature]}"
        return ""

    def write(self, messages: list[Message]) -> list[Message]:
        """Return the messages in the form that the template shows."""
        return [self._written(message) for message in messages]

    def dropped_of(self, messages: list[Message], tools: Tools | None, opening: bool) -> str:
        """Return what the template would leave out of these messages without a word, and why; "" for nothing."""
        needed = [TOOLS] if tools and opening else []
        roles = [message["role"] for message in messages]
        needed += [RESULT] if "tool" in roles else []
        needed += [RESULTS] if ("tool", "tool") in pairwise(roles) else []
        if "system" in roles:
            leading = (
                next((n for n, role in enumerate(roles) if role != "system"), len(roles)) if opening else 0
            )
            needed += [SYSTEM] if leading else []
            needed += [TWO_SYSTEM] if leading > 1 else []
            needed += [LATER_SYSTEM] if roles.count("system") > leading else []
        return next((self.lacks(feature) for feature in needed if feature in self.dropped), "")

    def _written(self, message: Message) -> Message:
        content = message.get("content")
        if self.no_content and content == "" and message.get("tool_calls"):
            return {**message, "content": None}
        if self.text_in_parts and isinstance(content, str):
            return {**message, "content": [{"type": "text", "text": content}]}
        if self.parts_joined and isinstance(content, list) and all(_is_text(part) for part in content):
            return {**message, "content": join_texts(str(part["text"]) for part in content)}
        return message


def join_texts(texts: Iterable[str]) -> str:
    """Return the texts of a message's parts as one, a line each; an empty one is none."""
    return "\n".join(filter(None, texts))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and "text" in part


def call_message(content: str | None, *arguments: Any) -> Message:
    """Return a turn that calls the probe's tool once for each of these arguments."""
    calls = [
        {"type": "function", "id": tool_call_id(n), "function": {"name": _TOOL, "arguments": one}}
        for n, one in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def probe_forms(render: Render) -> Traits:
    """Find how the template wants messages written; `render` is the template itself."""

    def shows(messages: list[Message], *words: str) -> bool:
        try:
            text = render(messages, None, False)
        except Exception:
            return False
        return all(word in text for word in words)

    in_parts: Message = {"role": "user", "content": [{"type": "text", "text": _ASK}]}
    plain = shows([USER], _ASK)
    parts = shows([in_parts], _ASK) and not shows([in_parts], _ASK, "'text'")

    def shows_call(content: str | None) -> bool:
        given = {_PARAMETER: _ARGUMENT}
        forms = (given, json.dumps(given))
        return any(shows([USER, call_message(content, form)], _TOOL, _ARGUMENT) for form in forms)

    text_in_parts = parts and not plain
    alone = not text_in_parts and not shows_call("") and shows_call(None)
    return Traits(text_in_parts=text_in_parts, parts_joined=plain and not parts, no_content=alone)


def probe_shown(forms: Traits, render: Render, observe: Callable[[list[Message], Tools], str]) -> Traits:
    """Find what the template does not show.

    render: writes messages in the template's own form. observe: the text that follows a turn that these messages
    answer.
    """
    dropped: dict[str, str] = {}
    refused: dict[str, str] = {}

    def look(feature: str, make: Callable[[], str], *words: str) -> None:
        try:
            text = make()
        except Exception as error:
            reason = str(getattr(error, "reason", error)).strip().partition("\n")[0][:200]
            refused[feature] = reason or type(error).__name__
            return
        if missing := [word for word in words if word not in text]:
            dropped[feature] = f"{missing[0]!r} of a probe is not in what it writes"

    tools = [PROBE_TOOL]
    user, system = USER, {"role": "system", "content": _TOLD}
    more_system: Message = {"role": "system", "content": _MORE}
    answer: Message = {"role": "assistant", "content": _SAY}
    more_user: Message = {"role": "user", "content": _MORE}
    results: list[Message] = [
        {"role": "tool", "tool_call_id": tool_call_id(n), "name": _TOOL, "content": word}
        for n, word in enumerate((_LONG, _SECOND))
    ]
    call = call_message("", {_PARAMETER: _ARGUMENT})
    look(TEXT, lambda: render([user, answer, more_user], None, True), _ASK, _MORE)
    look(TOOLS, lambda: render([user], tools, True), _TOOL)
    if TOOLS not in dropped and TOOLS not in refused:
        look(TOOL_PARAMETERS, lambda: render([user], tools, True), _PARAMETER)
    look(CALLS, lambda: render([user, call], None, False), _TOOL, _ARGUMENT)
    look(BARE_CALLS, lambda: render([user, call_message("", {})], None, False), _TOOL)
    look(RESULT, lambda: observe(results[:1], tools), _FIRST, _END)
    look(RESULTS, lambda: observe(results, tools), _FIRST, _SECOND)
    look(USER_AFTER_RESULT, lambda: observe([*results[:1], more_user], tools), _FIRST, _MORE)
    look(SYSTEM, lambda: render([system, user], None, True), _TOLD, _ASK)
    look(ONLY_SYSTEM, lambda: render([system], None, True), _TOLD)
    look(TWO_SYSTEM, lambda: render([system, more_system, user], None, True), _TOLD, _MORE)
    look(LATER_SYSTEM, lambda: observe([more_system], tools), _MORE)
    look(TWO_USERS, lambda: render([user, more_user], None, True), _ASK, _MORE)
    return Traits(forms.text_in_parts, forms.parts_joined, forms.no_content, dropped, refused)
