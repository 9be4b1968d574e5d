"""A look at every row of a source: what its prompt is known by, how long it is, and whether it can be judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from asyncrl.config_sections import DataConfig, DataSource
from asyncrl.errors import ConfigError, InputError
from asyncrl.images import has_images
from asyncrl.progress import progress
from asyncrl.rows.known_sets import known_set
from asyncrl.rows.question import PARTS
from asyncrl.rows.scan_cache import kept
from asyncrl.rows.settings import resolved
from asyncrl.rows.source import Rows, read_rows
from asyncrl.rows.template import ANSWER, Template
from asyncrl.rows.tokens import Counter
from asyncrl.types import Message

MESSAGES = "messages"
"""Key of the opening messages in a task's data, beside the row's own columns."""
LATER = {"train", "heldout", "heldout_share", "shuffle", "seed", "limit", "dedupe"}
"""Settings that decide about rows when all have been looked at, or name the rows themselves."""
TOKENIZED = 1024
"""Prompts whose tokens are counted at once."""

Reader = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Makes the data of a task of a row. Raises `KeyError`, `TypeError`, `ValueError` for a row that has not what it
needs."""
ReaderOf = Callable[[str], Reader]
"""Returns the reader of a format (`known_sets.KnownSet.format`)."""
GoldCheck = Callable[[Mapping[str, Any]], str | None]
"""Says of a row why no answer to it can be right, or None."""
GoldsOf = Callable[[Any], GoldCheck | None]
"""Returns that of a reward, as `data.reward` names it; None where there is nothing to check."""
SYSTEM = ("system", "system_prompt")
"""Columns that usually hold a system message."""
IMAGES = ("image", "images")
"""Columns that usually hold what a model is to see."""


@dataclass(slots=True)
class Scanned:
    """A source whose rows have all been read once."""

    rows: Rows
    read: Reader
    prompts: np.ndarray
    """[N] uint64, a hash of each row's prompt."""
    tokens: np.ndarray | None
    """[N] int64 of each prompt; None where they are not counted."""
    usable: np.ndarray
    """[N] bool, False where no answer can be right."""
    why: str
    """Which the first such row is, and why."""
    weight: float


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads each row of a source once: every one has what its prompt and answer need. A large source is read once for
    all processes that ask the same of it (`asyncrl.rows.scan_cache`)."""

    settings: DataConfig
    reader: ReaderOf | None
    count_tokens: Counter | None
    never_right: GoldCheck | None
    notes: list[str]
    asked: str
    """What decides what is found besides settings, source and rows."""

    def read(self, source: DataSource, split: str) -> Scanned:
        """Raises as `open_data` does."""
        rows = read_rows(source, split="train" if split == "train" else "test", key=f"data.{split}")
        read, expected = _reader(source, self.settings, rows, self.reader, self.notes)
        look = partial(self._look, rows, read, expected, split)
        filled = resolved(self.settings, source)
        known = known_set(filled.set)
        if (known is not None and known.format) or _is_own(filled.reward):
            # A format's own reader and a user's own reward are code that the cache knows nothing of.
            found, _ = look()
        else:
            asked = [split, filled.model_dump_json(exclude=LATER), self.asked]
            found = kept(rows, json.dumps(asked), look)
        why, usable = str(found["why"]), found["usable"]
        self._say(source, rows, int((~usable).sum()), why)
        return Scanned(rows, read, found["prompts"], found.get("tokens"), usable, why, source.weight)

    def _look(
        self, rows: Rows, read: Reader, expected: str, split: str
    ) -> tuple[dict[str, np.ndarray], bool]:
        """Return `prompts`, `usable` and `why` of `Scanned`, and `tokens` where they are counted; and whether these
        follow from the rows alone, not from files with images that they name."""
        prompts, usable = np.empty(len(rows), np.uint64), np.ones(len(rows), bool)
        counted = _Counted(self.count_tokens if split == "train" else None)
        why, alone = "", True
        with progress(f"reading {rows.name}", len(rows), "rows") as advance:
            for number, row in enumerate(rows):
                try:
                    data = read(row)
                    text = prompt_text(data)
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    wrong = (
                        f"column {error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
                    )
                    raise InputError(f"{rows.where(number)}: {wrong}; expected: {expected}") from error
                if self.never_right is not None and (found := self.never_right(data)) is not None:
                    usable[number] = False
                    why = why or f"{rows.where(number)}: {found}"
                prompts[number] = _hash(text)
                counted.add(_words(data))
                shown = data.get(MESSAGES)
                alone = alone and not (isinstance(shown, list) and has_images(shown))
                advance(1)
        lengths = counted.lengths()
        arrays = {"prompts": prompts, "usable": usable, "why": np.array(why)}
        if lengths is not None:
            arrays["tokens"] = lengths
        return arrays, alone

    def _say(self, source: DataSource, rows: Rows, unusable: int, why: str) -> None:
        name = resolved(self.settings, source).set
        known = known_set(name)
        if (
            known is not None
            and (note := f"{name}: {known.about} (licence: {known.licence})") not in self.notes
        ):
            self.notes.append(note)
        if unusable:
            self.notes.append(
                f"{rows.name}: {unusable} rows have an answer that nothing can match and are left out, such as {why}"
            )


class _Counted:
    """Counts the tokens of texts, many at once."""

    def __init__(self, count: Counter | None) -> None:
        self._count = count
        self._texts: list[str] = []
        self._lengths: list[int] = []

    def add(self, text: str) -> None:
        if self._count is not None:
            self._texts.append(text)
            if len(self._texts) == TOKENIZED:
                self.lengths()

    def lengths(self) -> np.ndarray | None:
        """Return the number of tokens of each text, [N] int64; None where they are not counted."""
        if self._count is None:
            return None
        self._lengths += self._count(self._texts)
        self._texts.clear()
        return np.array(self._lengths, np.int64)


def _reader(
    source: DataSource,
    settings: DataConfig,
    rows: Rows,
    reader: ReaderOf | None,
    notes: list[str],
) -> tuple[Reader, str]:
    """Return what makes a task's data of a row, and what it expects of one."""
    filled = resolved(settings, source)
    known = known_set(filled.set)
    if known is not None and known.format and not settings.prompt:
        if reader is None:
            raise ConfigError(
                f"data.set: {filled.set!r} has tasks of its own; give data.prompt to play its rows"
            )
        return reader(known.format), f"a row of {filled.set} ({known.about})"
    try:
        template = Template(
            rows.name,
            rows.columns,
            filled.prompt,
            filled.system or "",
            filled.answer,
            filled.images,
            rows.folders,
        )
    except ConfigError as error:
        if known is None or settings.set or settings.prompt:
            raise
        raise ConfigError(
            f"{error}. It was taken for {filled.set!r}, by its name: give data.prompt and data.answer, or "
            'data.set="none"'
        ) from error
    unsaid = [name for name in template.unused if known is None or name not in known.extra]
    for name in unsaid if not template.system else ():
        if name in SYSTEM:
            notes.append(
                f'{rows.name}: column {name!r} is not shown; data.system="{{{name}}}" makes it the system message'
            )
    if unseen := [name for name in unsaid if name in IMAGES]:
        notes.append(
            f"{rows.name}: no image of {', '.join(unseen)} is shown; data.images names such a column"
        )
    if unsaid:
        parts = [name for name in unsaid if name in PARTS]
        often = (
            f"; {' and '.join(parts)} often {'is' if len(parts) == 1 else 'are'} part of the question"
            if parts
            else ""
        )
        notes.append(
            f"{rows.name}: neither in the prompt nor the answer, only given to rewards: {', '.join(unsaid)}{often}"
        )
    if not template.answered and not settings.set and not _ends_with_answer(template, rows):
        notes.append(
            f"{rows.name}: has no column with an answer; the reward gets the row without `answer`, unless data.answer "
            "names one"
        )

    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        answer = template.right_answer(row)
        if isinstance(answer, float) and answer != answer:
            raise ValueError(f"{template.answer}: is not a number (NaN)")
        given = {} if answer is None else {ANSWER: answer}
        return {**row, **given, MESSAGES: template.messages(row)}

    needed = sorted(template.shown | template.answered)
    return read, f"a value in each of the columns {', '.join(needed)}"


def _ends_with_answer(template: Template, rows: Rows) -> bool:
    """Whether the first row is a conversation that ends with the assistant's words, which are the right answer."""
    try:
        return template.right_answer(rows[0]) is not None
    except (KeyError, TypeError, ValueError, IndexError):
        # Said with its row when all are read.
        return False


def opening(data: Mapping[str, Any]) -> list[Message]:
    """Return the opening messages in a task's data."""
    return list(data[MESSAGES])


def prompt_text(data: Mapping[str, Any]) -> str:
    """Return what of a task's data is shown to the model, without the system message, as one text."""
    found = next((data[key] for key in (MESSAGES, "statement", "question", "prompt") if key in data), data)
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        shown = [message.get("content") for message in found if message.get("role") != "system"]
        if all(isinstance(content, str) for content in shown):
            return "\n".join(shown)
        found = shown
    return json.dumps(found, sort_keys=True, ensure_ascii=False)


def _words(data: Mapping[str, Any]) -> str:
    """Return the texts of what is shown to the model, without its images."""
    messages = data.get(MESSAGES)
    if not isinstance(messages, list):
        return prompt_text(data)
    contents = [message.get("content") for message in messages if message.get("role") != "system"]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    return "\n".join(
        part if isinstance(part, str) else part.get("text", "") for part in parts if part is not None
    )


def _is_own(reward: Any) -> bool:
    """Whether a function of the user's own is part of a reward, as `data.reward` names it."""
    parts = reward if isinstance(reward, list) else [reward]
    names = [str(part.get("name", "")) if isinstance(part, Mapping) else str(part) for part in parts]
    return any(":" in name and not name.startswith("regex:") for name in names)


def _hash(text: str) -> int:
    """Return a hash of a prompt, however its blanks are written."""
    same = " ".join(text.split())
    return int.from_bytes(hashlib.blake2b(same.encode(errors="replace"), digest_size=8).digest(), "little")
