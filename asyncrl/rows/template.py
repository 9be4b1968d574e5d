"""What of a row is the prompt and the answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.rows.question import chosen_label, question_columns, whole_question
from asyncrl.types import Message

FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*(?:\.\w+)*)\}")
"""A column in braces, with the names of fields inside it after dots; doubled braces stand for themselves."""
CONVERSATIONS = ("messages", "conversations", "conversation")
PREFERENCES = (
    ("chosen", "rejected"),
    ("chosen_response", "rejected_response"),
    ("preferred_output", "non_preferred_output"),
)
"""Columns with a preferred answer and another one, of which the first pair that is there is taken. Both may be whole
conversations, which then have the prompt."""
ASKED_IN = {"preferred_output": "{input.messages}"}
"""Where the prompt of such a column is (OpenAI)."""
ANSWERS = (
    *("answer", "Answer", "expected_answer", "final_answer", "solution", "ground_truth", "target"),
    *("answerKey", "correct_answer", "golden_answers", "gt_answer", "output", "response"),
)
"""Columns with an answer, of which the first that is there is taken."""
INSIDE = {"reward_model": "{reward_model.ground_truth}"}
"""Answers that other trainers' files have inside a column (verl)."""
ANSWER = "answer"
"""Key of the right answer in what the reward gets."""
ROLES = ("system", "user", "assistant", "tool")


class Template:
    """Makes opening messages and the right answer of rows with the same columns."""

    def __init__(
        self,
        name: str,
        columns: Sequence[str],
        prompt: str,
        system: str,
        answer: str,
        images: str = "",
        folders: Sequence[Path] = (),
    ) -> None:
        """name: of the source, for errors. folders: where its files are, in which images that rows name are looked for.
        The others are as in `[data]`. Raises `ConfigError` for a column that is not there, and for a prompt that shows
        the answer."""
        self._name, self._columns, self._folders = name, list(columns), folders
        self._shows = [one.load() for one in rows("row_contents")]
        self.system = system
        self.images = self._column("data.images", images)
        self._preferred = "" if prompt else _preferred(columns)
        """Column whose conversations have the prompt because no other column has one."""
        self.prompt = prompt or next((name for name in CONVERSATIONS if name in columns), self._preferred)
        self.answer = answer or self._usual_answer()
        self._question = [] if self.prompt else self._usual_question()
        asked = {*self._question, *self._fields("data.prompt", self.prompt)}
        asked |= set(self._fields("data.system", system))
        self.shown = asked | set(filter(None, [self.images]))
        """Columns that the model is shown."""
        self.answered = set(self._fields("data.answer", self.answer))
        """Columns that the right answer is from."""
        if both := sorted(asked & self.answered):
            raise ConfigError(
                f"data.prompt: shows column {both[0]!r}, which is the right answer; write {{{{{both[0]}}}}} where the "
                "braces stand for themselves"
            )

    @property
    def unused(self) -> list[str]:
        """Columns that are neither shown to the model nor the answer."""
        return [name for name in self._columns if name not in self.shown | self.answered]

    def messages(self, row: Mapping[str, Any]) -> list[Message]:
        """Return the opening messages of a row. Raises `KeyError`, `TypeError`, `ValueError` for a row that has none.

        What a conversation ends with as the assistant's own words is left out.
        """
        messages = self._conversation(row)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not any(_says_something(message) for message in messages):
            raise ValueError("the prompt is empty")
        for show in self._shows:
            show(messages, row, self.images, self._folders)
        if self.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": fill(self.system, row)})
        return messages

    def right_answer(self, row: Mapping[str, Any]) -> Any:
        """Return the right answer of a row, None where its source has none. Raises `KeyError`, `ValueError`."""
        if self.answer in self._columns:
            return chosen_label(row, row[self.answer]) if self._question else row[self.answer]
        if self.answer:
            return fill(self.answer, row)
        last = self._conversation(row)[-1]
        return last.get("content") if last["role"] == "assistant" else None

    def _conversation(self, row: Mapping[str, Any]) -> list[Message]:
        """Return the conversation of a row, whole."""
        if not self._question:
            found = row[self.prompt] if self.prompt in self._columns else value_of(self.prompt, row)
            if self.prompt == self._preferred and isinstance(found, str):
                raise ValueError(
                    f"{self.prompt}: is a text, so which part of it is the prompt cannot be told; name the prompt's "
                    "column by data.prompt"
                )
            return _conversation(self.prompt, found)
        first = row.get(self._question[0])
        return _conversation(self._question[0], first if isinstance(first, list) else whole_question(row))

    def _usual_question(self) -> list[str]:
        if columns := question_columns(self._columns):
            return columns
        raise ConfigError(
            f"data.prompt: {self._name} has none of the usual columns; name one, or write a template such as "
            f'"{{{self._columns[0]}}}"; there are: {", ".join(self._columns)}'
        )

    def _usual_answer(self) -> str:
        found = next((name for name in ANSWERS if name in self._columns), "")
        inside = next((text for name, text in INSIDE.items() if name in self._columns), "")
        return found or inside

    def _column(self, key: str, name: str) -> str:
        if name and name not in self._columns:
            raise ConfigError(
                f"{key}: {self._name} has no column {name!r}; there are: {', '.join(self._columns)}"
            )
        return name

    def _fields(self, key: str, text: str) -> list[str]:
        """Return the columns that a template, or the name of a column, refers to."""
        if text in self._columns:
            return [text]
        fields = [name.partition(".")[0] for name in FIELD.findall(text) if name]
        if not fields and text and key != "data.system":
            hint = "" if FIELD.search(text) else "; a template names columns in braces"
            if text.partition(".")[0] in self._columns and FIELD.fullmatch(f"{{{text}}}"):
                hint = f'; a field inside a column is in braces: "{{{text}}}"'
            raise ConfigError(
                f"{key}: {self._name} has no column {text!r}{hint}; there are: {', '.join(self._columns)}"
            )
        for field in fields:
            self._column(key, field)
        return fields


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Return a template with the row's values for the columns in braces. Raises `KeyError` for one that is absent,
    `ValueError` for a field that a column has not."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        found = _field(match[1], row)
        return found if isinstance(found, str) else _text(found)

    return FIELD.sub(value, template)


def value_of(template: str, row: Mapping[str, Any]) -> Any:
    """Return a template filled in; the value itself where it is one field alone, such as messages inside a column.

    Raises as `fill` does.
    """
    alone = FIELD.fullmatch(template)
    if alone is None or alone[1] is None:
        return fill(template, row)
    found = _field(alone[1], row)
    return found if isinstance(found, list) else fill(template, row)


def _field(name: str, row: Mapping[str, Any]) -> Any:
    found: Any = row
    for depth, one in enumerate(names := name.split(".")):
        if not isinstance(found, Mapping) or one not in found:
            raise _absent(names, depth, found)
        found = found[one]
    return found


def _preferred(columns: Sequence[str]) -> str:
    """Return the column of preferred answers, or where their prompt is, if no other column can have the prompt."""
    if question_columns(columns) or any(name in columns for name in CONVERSATIONS):
        return ""
    better = next((better for better, worse in PREFERENCES if better in columns and worse in columns), "")
    return ASKED_IN.get(better, better)


def _absent(names: Sequence[str], depth: int, found: Any) -> Exception:
    """Return what is wrong where `found`, what `names` lead to as far as `depth`, has not the next one."""
    if not depth:
        return KeyError(names[0])
    column = ".".join(names[:depth])
    inside = f"it has {', '.join(map(str, found))}" if isinstance(found, Mapping) else f"it is {found!r:.80}"
    return ValueError(f"{column} has no field {names[depth]!r}; {inside}")


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return str(value)


def _conversation(column: str, found: Any) -> list[Message]:
    """Return a text as the user's message, and a list of messages in the form of chat templates.

    Raises `TypeError`, `ValueError` for what is neither.
    """
    if found == []:
        raise ValueError(f"{column}: holds no message")
    if not isinstance(found, list):
        return [{"role": "user", "content": found if isinstance(found, str) else _text(found)}]
    messages: list[Message] = []
    for one in found:
        if not isinstance(one, Mapping):
            raise TypeError(f"{column}: must be text or a list of messages, got {found!r:.80}")
        # The form of ShareGPT, which many conversations are kept in.
        role = one.get(
            "role", {"human": "user", "gpt": "assistant"}.get(str(one.get("from")), one.get("from"))
        )
        content = one.get("content", one.get("value", ""))
        if role not in ROLES:
            raise ValueError(f"{column}: a message's role must be {', '.join(ROLES)}, got {role!r}")
        messages.append(
            {k: v for k, v in one.items() if k not in ("from", "value")} | {"role": role, "content": content}
        )
    return messages


def _says_something(message: Message) -> bool:
    content = message.get("content")
    return bool(content.strip() if isinstance(content, str) else content)
