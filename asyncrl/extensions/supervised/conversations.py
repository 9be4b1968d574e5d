"""Rows of a data set as conversations to learn from. Loads no torch.

A row is one of

- a conversation: a column `messages` (or `conversations`, also in ShareGPT's form), and `tools` where it offers some;
- a prompt and a completion: columns of these names, texts or messages, or templates over other columns;
- a question and its right answer, by the columns that `[data]` names or finds.

The calls of tools may be in OpenAI's form, with arguments as JSON text. An assistant's message with `weight` 0 is read
and not learned from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.demonstrations import Demonstration
from asyncrl.extensions.vision.pictures import show_as_in
from asyncrl.rows.data import Part
from asyncrl.rows.scan import MESSAGES
from asyncrl.rows.template import ANSWER, CONVERSATIONS, FIELD, fill
from asyncrl.types import Message

COMPLETION = "completion"
REWARD = "reward"
SPOKEN_BY = {"human": "user", "gpt": "assistant", "function_response": "tool", "observation": "tool"}
"""Roles of ShareGPT's form whose names differ."""
SYSTEM = ("system", "developer")
ROLES = (*SYSTEM, "user", "assistant", "tool")
WEIGHT = "weight"


class Conversations:
    """Rows of one source as conversations, made when they are asked for.

    part: which rows, and what of them is the prompt. completion, min_reward: as in `[sft]`. Raises `ConfigError` for
    columns that are not there.
    """

    def __init__(self, part: Part, completion: str = "", min_reward: float | None = None) -> None:
        self._part, self._min_reward = part, min_reward
        self.name, columns = part.rows.name, part.rows.columns
        there = f"there are: {', '.join(columns)}"
        if min_reward is not None and REWARD not in columns:
            raise ConfigError(f"sft.min_reward: {self.name} has no column {REWARD!r}; {there}")
        self._completion = completion or (COMPLETION if COMPLETION in columns else "")
        whole = next((name for name in CONVERSATIONS if name in columns), "")
        self._whole = "" if self._completion else whole
        if self._completion and self._completion not in columns:
            used = [name.partition(".")[0] for name in FIELD.findall(self._completion) if name]
            missing = next((name for name in used or [self._completion] if name not in columns), None)
            if missing is not None:
                hint = "" if used else "; a text names columns in braces"
                raise ConfigError(f"sft.completion: {self.name} has no column {missing!r}{hint}; {there}")

    def __len__(self) -> int:
        return len(self._part.kept)

    def __iter__(self) -> Iterator[tuple[str, Demonstration]]:
        """Yield where each row is, for errors, and its conversation; rows below `min_reward` are left out.

        Raises `InputError` naming the row and what was expected.
        """
        for index in map(int, self._part.kept):
            row = self._part.rows[index]
            if self._min_reward is None or self._earned(row, index) >= self._min_reward:
                yield self._part.rows.where(index), self._made(row, index)

    def first(self) -> Demonstration:
        """Return the first conversation, to see that rows can be read. Raises `InputError`."""
        for _, conversation in self:
            return conversation
        raise InputError(f"sft.data: {self.name}: no row has a reward of {self._min_reward:g} or more")

    def _made(self, row: Mapping[str, Any], index: int) -> Demonstration:
        try:
            messages = self._messages(row)
            tools = as_objects("tools", row.get("tools"))
            check_order(messages)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"column {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{self._part.rows.where(index)}: {problem}") from error
        return Demonstration(messages, tools, float(row.get(REWARD, 0.0) or 0.0))

    def _messages(self, row: Mapping[str, Any]) -> list[Message]:
        data = self._part.read(row)
        opening: list[Message] = data[MESSAGES]
        if self._whole:
            messages = as_messages(self._whole, row[self._whole])
            show_as_in(messages, opening)
            added = opening[0]["role"] == "system" and messages[:1] != opening[:1]
            return [*(opening[:1] if added and messages[0]["role"] not in SYSTEM else []), *messages]
        return [*opening, *self._answer(row, data)]

    def _answer(self, row: Mapping[str, Any], data: Mapping[str, Any]) -> list[Message]:
        if not self._completion:
            found = data.get(ANSWER)
            if found is None:
                raise ValueError(
                    "has neither messages nor a completion nor a right answer; name what the model is to write by "
                    "sft.completion"
                )
        else:
            found = row[self._completion] if self._completion in row else fill(self._completion, row)
        if isinstance(found, list):
            return as_messages(self._completion or ANSWER, found)
        text = found if isinstance(found, str) else fill("{text}", {"text": found})
        if not text.strip():
            raise ValueError("has an empty completion")
        return [{"role": "assistant", "content": text}]

    def _earned(self, row: Mapping[str, Any], index: int) -> float:
        found = row.get(REWARD)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise InputError(f"{self._part.rows.where(index)}: {REWARD}: must be a number, got {found!r:.80}")
        return float(found)


def as_messages(column: str, found: Any) -> list[Message]:
    """Return a column's messages in the form that chat templates take. Raises `TypeError` and `ValueError`."""
    listed = as_objects(column, found)
    messages: list[Message] = []
    for one in listed:
        role = one.get("role", SPOKEN_BY.get(str(one.get("from")), one.get("from")))
        if role not in ROLES:
            raise ValueError(f"{column}: a message's role must be one of {', '.join(ROLES)}, got {role!r}")
        kept = {key: value for key, value in one.items() if key not in ("from", "value", "role")}
        message: Message = {"role": role, "content": one.get("content", one.get("value", "")), **kept}
        message["content"] = "" if message["content"] is None else message["content"]
        if calls := message.pop("tool_calls", None):
            message["tool_calls"] = [_call(column, call) for call in as_objects("tool_calls", calls)]
        messages.append(message)
    return messages


def learned(message: Message) -> bool:
    """Whether the model learns to write a message: the assistant's, unless its `weight` is 0."""
    return message["role"] == "assistant" and message.get(WEIGHT, 1) != 0


def check_order(messages: Sequence[Message]) -> None:
    """Raise `ValueError` for a conversation that nothing can be learned from, or that no chat template can write."""
    if not messages or messages[0]["role"] == "assistant":
        raise ValueError("a conversation must begin with a message of the system or the user")
    for before, message in pairwise(messages):
        if before["role"] == message["role"] == "assistant":
            raise ValueError(
                "two messages of the assistant follow each other; expected: one answer to each message"
            )
    if not any(learned(message) for message in messages):
        raise ValueError("has no message of the assistant to learn from")


def _call(column: str, call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call of a tool with its arguments as an object."""
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{column}: a tool call must name its function, got {call!r:.80}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            raise ValueError(f"{column}: the arguments of a tool call are no JSON: {error}") from error
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return found | ({"id": call["id"]} if call.get("id") else {})


def as_objects(column: str, found: Any) -> list[dict[str, Any]]:
    """Return a list of objects that may be kept as JSON text."""
    if isinstance(found, str) and found.strip():
        try:
            found = json.loads(found)
        except ValueError as error:
            raise TypeError(
                f"{column}: must be a list of objects, got text that is no JSON: {error}"
            ) from error
    if found in (None, ""):
        return []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise TypeError(f"{column}: must be a list of objects, got {found!r:.80}")
    return [dict(one) for one in found]
