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
from typing import Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.rows.source import Rows
from asyncrl.rows.template import CONVERSATIONS, Template, fill
from asyncrl.train.demonstrations import Demonstration
from asyncrl.types import Message

COMPLETION = "completion"
REWARD = "reward"
SPOKEN_BY = {"human": "user", "gpt": "assistant", "function_response": "tool", "observation": "tool"}
"""Roles of ShareGPT's form whose names differ."""
ROLES = ("system", "developer", "user", "assistant", "tool")
WEIGHT = "weight"


class Conversations:
    """The rows of one source as conversations, made when they are asked for.

    prompt, completion, system: as in `[sft]` and `[data]`; min_reward: see `SftConfig`. Raises `ConfigError` for
    columns that are not there.
    """

    def __init__(
        self,
        rows: Rows,
        prompt: str = "",
        completion: str = "",
        system: str = "",
        min_reward: float | None = None,
    ) -> None:
        self.rows = rows
        self._min_reward = min_reward
        columns = rows.columns
        if min_reward is not None and REWARD not in columns:
            raise ConfigError(
                f"sft.min_reward: {rows.name} has no column {REWARD!r}; there are: {', '.join(columns)}"
            )
        self._completion = completion or (COMPLETION if COMPLETION in columns else "")
        whole = next((name for name in CONVERSATIONS if name in columns), "")
        self._whole = prompt if prompt in CONVERSATIONS else whole if not prompt else ""
        if self._completion:
            self._whole = ""
        self._system = system
        self._template = None
        if not self._whole:
            self._template = Template(rows.name, columns, prompt, system, "")
            if self._completion:
                self._check_completion(columns)
            elif not self._template.answer:
                raise ConfigError(
                    f"sft.completion: {rows.name} has neither messages nor a completion nor a right answer; name what "
                    f"the model is to write; there are: {', '.join(columns)}"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[str, Demonstration]]:
        """Yield where each row is, for errors, and its conversation; rows below `min_reward` are left out.

        Raises `InputError` naming the row and what was expected.
        """
        for index in range(len(self.rows)):
            row = self.rows[index]
            if self._min_reward is not None and not self._earned(row, index) >= self._min_reward:
                continue
            yield self.rows.where(index), self._made(row, index)

    def first(self) -> Demonstration:
        """Return the first conversation, to see that rows can be read. Raises `InputError`."""
        for _, conversation in self:
            return conversation
        raise InputError(f"sft.data: {self.rows.name}: no row has a reward of {self._min_reward:g} or more")

    def _made(self, row: Mapping[str, Any], index: int) -> Demonstration:
        try:
            messages = self._messages(row)
            tools = _objects("tools", row.get("tools"))
            check_order(messages)
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{self.rows.where(index)}: {problem}") from error
        return Demonstration(messages, tools, float(row.get(REWARD, 0.0) or 0.0))

    def _messages(self, row: Mapping[str, Any]) -> list[Message]:
        if self._template is None:
            messages = as_messages(self._whole, row[self._whole])
            if self._system and messages and messages[0]["role"] not in ("system", "developer"):
                messages.insert(0, {"role": "system", "content": fill(self._system, row)})
            return messages
        opening = self._template.messages(row)
        return [*opening, *self._answer(row, self._template)]

    def _answer(self, row: Mapping[str, Any], template: Template) -> list[Message]:
        if not self._completion:
            found: Any = template.right_answer(row)
        else:
            found = row[self._completion] if self._completion in row else fill(self._completion, row)
        if isinstance(found, list):
            return as_messages(self._completion, found)
        if found is None or (text := found if isinstance(found, str) else str(found)) == "":
            raise ValueError("has an empty completion")
        return [{"role": "assistant", "content": text}]

    def _check_completion(self, columns: Sequence[str]) -> None:
        """Refuse a template of columns that are not there, and one of none."""
        if self._completion in columns:
            return
        Template(self.rows.name, columns, self._completion, "", "")

    def _earned(self, row: Mapping[str, Any], index: int) -> float:
        found = row.get(REWARD)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise InputError(f"{self.rows.where(index)}: {REWARD}: must be a number, got {found!r:.80}")
        return float(found)


def as_messages(column: str, found: Any) -> list[Message]:
    """Return a column's messages in the form that chat templates take. Raises `TypeError` and `ValueError`."""
    listed = _objects(column, found)
    messages: list[Message] = []
    for one in listed:
        role = one.get("role", SPOKEN_BY.get(str(one.get("from")), one.get("from")))
        if role not in ROLES:
            raise ValueError(f"{column}: a message's role must be one of {', '.join(ROLES)}, got {role!r}")
        kept = {key: value for key, value in one.items() if key not in ("from", "value", "role")}
        message: Message = {"role": role, "content": one.get("content", one.get("value", "")), **kept}
        message["content"] = "" if message["content"] is None else message["content"]
        if calls := message.pop("tool_calls", None):
            message["tool_calls"] = [_call(column, call) for call in _objects("tool_calls", calls)]
        messages.append(message)
    return messages


def learned(message: Message) -> bool:
    """Whether the model learns to write a message: the assistant's, unless its `weight` is 0."""
    return message["role"] == "assistant" and message.get(WEIGHT, 1) != 0


def check_order(messages: Sequence[Message]) -> None:
    """Raise `ValueError` for a conversation that nothing can be learned from, or that no chat template can write."""
    if not messages or messages[0]["role"] == "assistant":
        raise ValueError("a conversation must begin with a message of the system or the user")
    for before, message in zip(messages, messages[1:], strict=False):
        if before["role"] == message["role"] == "assistant":
            raise ValueError("two messages of the assistant follow each other; expected: one answer to each message")
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


def _objects(column: str, found: Any) -> list[dict[str, Any]]:
    """Return a list of objects that may be kept as JSON text."""
    if isinstance(found, str) and found.strip():
        try:
            found = json.loads(found)
        except ValueError as error:
            raise TypeError(f"{column}: must be a list of objects, got text that is no JSON: {error}") from error
    if found in (None, ""):
        return []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise TypeError(f"{column}: must be a list of objects, got {found!r:.80}")
    return [dict(one) for one in found]
