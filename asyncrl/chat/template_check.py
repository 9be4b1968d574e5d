"""Does a chat template show what a run's tasks need, and is the reasoning read as it is written?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.template_traits import (
    BARE_CALLS,
    CALLS,
    NEEDED_BY_TOOLS,
    RESULT,
    RESULTS,
    TEXT,
    TOOL_PARAMETERS,
    TOOLS,
)
from asyncrl.errors import ConfigError

THINK = ("<think>", "</think>")


def refuse_template(renderer: ChatRenderer, needs_tools: bool) -> None:
    """Refuse a template that does not show what the tasks need. Raises `ConfigError` with what is missing and why."""
    for feature in (TEXT, *(NEEDED_BY_TOOLS if needs_tools else ())):
        if reason := renderer.traits.lacks(feature):
            because = "the environment offers tools, and " if feature != TEXT else ""
            raise ConfigError(
                f"model.chat_template: {because}{reason}; give a template that writes them, a file named in "
                "model.chat_template, or another model"
            )


def notes_on_template(renderer: ChatRenderer, needs_tools: bool) -> list[str]:
    """Return what a template leaves out that tasks of other kinds, or some turns of these, would need."""
    if not needs_tools:
        # Without the details, which matter where tools are needed.
        lacking = filter(None, map(renderer.traits.lacks, (TOOLS, RESULT)))
        return [
            f"model.chat_template: {reason.partition(':')[0]}; these tasks need none" for reason in lacking
        ][:1]
    listed = (TOOL_PARAMETERS, CALLS, BARE_CALLS, RESULTS)
    return [f"model.chat_template: {reason}" for one in listed if (reason := renderer.traits.lacks(one))]


def notes_on_arguments(renderer: ChatRenderer, given: Mapping[str, Any]) -> list[str]:
    """Return which of `model.chat_template_args` the template does not read.

    They are told and not refused: a recipe's arguments stay when another model is named on the command line.
    """
    template = getattr(renderer.tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return []
    unread = [name for name in given if not re.search(rf"\b{re.escape(name)}\b", template)]
    return [
        f"model.chat_template_args: {name!r} changes nothing, since the chat template does not read it"
        for name in unread
    ]


def found_reasoning_format(renderer: ChatRenderer) -> str:
    """Return the `model.reasoning_format` that the template's own writing asks for: "think", or "" where it shows no
    reasoning or writes it in another way."""
    marks = renderer.reasoning_marks()
    if renderer.opens_reasoning() or (marks is not None and marks[0].endswith(THINK[0])):
        return "think"
    return ""


def check_reasoning(renderer: ChatRenderer, tool_format: str, reasoning_format: str) -> list[str]:
    """Return what to say about `model.reasoning_format`. Raises `ConfigError` where the template contradicts it."""
    if tool_format == "harmony":
        return []
    found, marks = found_reasoning_format(renderer), renderer.reasoning_marks()
    if found and not reasoning_format:
        where = (
            "opens <think> before each turn" if renderer.opens_reasoning() else "writes reasoning as <think>"
        )
        return [
            f"model.reasoning_format: the chat template {where}, and reasoning is left in the text that environments "
            'and rewards read; "think" splits it off'
        ]
    if reasoning_format == "think" and not found and marks is not None and THINK[1] not in "".join(marks):
        raise ConfigError(
            f"model.reasoning_format: 'think' reads <think>...</think>, and the chat template writes reasoning between "
            f"{marks[0][-40:]!r} and {marks[1][:40]!r}; name the vLLM reasoning parser of this model, or leave it out"
        )
    return []
