"""Rows of one answer that is desirable or not: a column `label` beside prompt and completion. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.conversations import WEIGHT, Conversations
from asyncrl.extensions.supervised.demonstrations import Demonstration
from asyncrl.rows.data import Part

LABEL = "label"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A conversation of which the last answer is learned, and whether that is desirable."""

    conversation: Demonstration
    desirable: bool


class Verdicts:
    """Rows of one source as verdicts, made when they are asked for. Raises `ConfigError` for missing columns."""

    def __init__(self, part: Part, completion: str = "") -> None:
        self._part, self.name = part, part.rows.name
        if LABEL not in part.rows.columns:
            raise ConfigError(
                f"sft.objective: needs a column {LABEL!r}, which {self.name} has not; there are: "
                f"{', '.join(part.rows.columns)}"
            )
        self._conversations = Conversations(part, completion)

    def __len__(self) -> int:
        return len(self._part.kept)

    def __iter__(self) -> Iterator[tuple[str, Verdict]]:
        """Yield where each row is, for errors, and its verdict. Raises `InputError` naming the row."""
        for index, (where, conversation) in zip(map(int, self._part.kept), self._conversations, strict=True):
            label = self._part.rows[index].get(LABEL)
            if label not in (0, 1, False, True):
                raise InputError(f"{where}: {LABEL}: must be true or false, got {label!r:.80}")
            yield where, Verdict(_last_alone(conversation), bool(label))

    def first(self) -> Verdict:
        """Return the first verdict, to see that rows can be read. Raises `InputError`."""
        return next(iter(self))[1]


def _last_alone(conversation: Demonstration) -> Demonstration:
    """Return a conversation up to its last answer, which alone is learned."""
    messages = list(conversation.messages)
    while messages[-1]["role"] != "assistant":
        messages.pop()
    read = [m | {WEIGHT: 0} if m["role"] == "assistant" else m for m in messages[:-1]]
    return replace(conversation, messages=[*read, messages[-1]])
