"""Rows of two answers, of which one is preferred: columns `chosen` and `rejected`, or others. Loads no torch.

Both are texts, after the row's prompt, or conversations: what these begin with alike is the prompt, and what follows in
each is learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.conversations import WEIGHT, as_messages, as_objects, check_order
from asyncrl.extensions.supervised.demonstrations import Demonstration
from asyncrl.extensions.vision.pictures import show_as_in
from asyncrl.rows.data import Part
from asyncrl.rows.scan import MESSAGES
from asyncrl.rows.template import PREFERENCES
from asyncrl.types import Message

KEYS = "sft.chosen", "sft.rejected"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two conversations that begin alike."""

    chosen: Demonstration
    rejected: Demonstration


class Pairs:
    """Rows of one source as pairs, made when they are asked for. Raises `ConfigError` for columns that are missing."""

    def __init__(self, part: Part, chosen: str = "", rejected: str = "") -> None:
        """chosen, rejected: as in `[sft]`."""
        self._part, self.name = part, part.rows.name
        there = part.rows.columns
        usual = next((two for two in PREFERENCES if set(two) <= set(there)), PREFERENCES[0])
        self._columns = chosen or usual[0], rejected or usual[1]
        for key, given, column in zip(KEYS, (chosen, rejected), self._columns, strict=True):
            if column not in there:
                wanted = f"{key}: {self.name} has no column {column!r}"
                if not given:
                    wanted = f"sft.objective: needs a column {column!r}, which {self.name} has not; {key} names another"
                raise ConfigError(f"{wanted}; there are: {', '.join(there)}")

    def __len__(self) -> int:
        return len(self._part.kept)

    def __iter__(self) -> Iterator[tuple[str, Pair]]:
        """Yield where each row is, for errors, and its pair. Raises `InputError` naming the row."""
        for index in map(int, self._part.kept):
            where, row = self._part.rows.where(index), self._part.rows[index]
            try:
                yield where, self._made(row)
            except (KeyError, TypeError, ValueError) as error:
                problem = (
                    f"column {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
                )
                raise InputError(f"{where}: {problem}") from error

    def first(self) -> Pair:
        """Return the first pair, to see that rows can be read. Raises `InputError`."""
        return next(iter(self))[1]

    def _made(self, row: Mapping[str, Any]) -> Pair:
        opening: list[Message] = self._part.read(row)[MESSAGES]
        talks = [_conversation(column, row[column], opening) for column in self._columns]
        same = len(list(takewhile(lambda two: two[0] == two[1], zip(*talks, strict=False))))
        asked = row.get("input")
        inside = asked.get("tools") if isinstance(asked, Mapping) else None
        tools = as_objects("tools", inside or row.get("tools"))
        made = []
        for column, talk in zip(self._columns, talks, strict=True):
            if not any(message["role"] == "assistant" for message in talk[same:]):
                raise ValueError(f"{column}: has no answer that the other column has not")
            check_order(talk)
            # What both begin with is their prompt.
            read = [m | {WEIGHT: 0} if m["role"] == "assistant" else m for m in talk[:same]]
            made.append(Demonstration([*read, *talk[same:]], tools, 0.0))
        return Pair(*made)


def _conversation(column: str, found: Any, opening: list[Message]) -> list[Message]:
    if isinstance(found, str):
        if not found.strip():
            raise ValueError(f"{column}: is empty")
        return [*opening, {"role": "assistant", "content": found}]
    messages = as_messages(column, [found] if isinstance(found, Mapping) else found)
    if messages and messages[0]["role"] != "assistant":
        show_as_in(messages, opening)
        system = opening[:1] if opening[0]["role"] == "system" and messages[0]["role"] != "system" else []
        return [*system, *messages]
    return [*opening, *messages]
