"""The training data of checkpoints, and what of an evaluation's tasks is in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Any

from asyncrl.config import load_config
from asyncrl.env.parts import in_part
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.answer_rewards.gold import golds
from asyncrl.extensions.benchmarks.contamination import Question, contamination, row_text
from asyncrl.extensions.benchmarks.importers.records import reader_of
from asyncrl.rewards.golds import gold_check
from asyncrl.rows.data import open_data
from asyncrl.rows.scan import prompt_text
from asyncrl.rows.source import Rows, read_rows
from asyncrl.run.checkpoints import run_of
from asyncrl.types import Task

MOST_ROWS = 500_000
"""Rows of one source that are looked at."""

Texts = Iterable[tuple[str, str]]
"""Where each row is, and its text."""


def training_data(checkpoints: Sequence[str], given: Sequence[str]) -> dict[str, Texts]:
    """Return the rows that checkpoints were trained on, by source: those of the runs they are of, and `given` ones.

    given: files, folders or hub names. Raises `ConfigError`, `InputError` for one of these that cannot be read.
    """
    found: dict[str, Texts] = {}
    for checkpoint in checkpoints:
        folder = run_of(checkpoint)
        if folder is not None and str(folder) not in found:
            found[str(folder)] = _of_run(folder)
    for source in given:
        found[source] = _of_source(read_rows(source, key="--trained-on"))
    return found


def look_for(tasks: Mapping[str, Sequence[Task]], data: Mapping[str, Texts]) -> dict[str, Any]:
    """Return what is found of an evaluation's tasks, by part and source: see `contamination`.

    Tasks have the ids that their samples have. The source is "" where there is no training data to look at; one that
    cannot be read any more is a note.
    """
    ids = {part: {in_part(part, task).id for task in mine} for part, mine in tasks.items()}
    questions = {in_part(part, task).id: question_of(task) for part, mine in tasks.items() for task in mine}
    notes: list[str] = []
    parts: dict[str, dict[str, Any]] = {part: {} for part in tasks}
    nothing: dict[str, Texts] = {"": ()}
    for source, texts in (data or nothing).items():
        try:
            looked = contamination(questions, islice(texts, MOST_ROWS))
        except (ConfigError, InputError, OSError) as error:
            notes.append(f"{source}: its training data cannot be read: {error}")
            continue
        if looked["rows"] == MOST_ROWS:
            notes.append(f"{source}: only its first {MOST_ROWS} rows were looked at")
        for part in parts:
            parts[part][source] = _of_part(looked, ids[part])
    return {"parts": parts, "notes": notes}


def question_of(task: Task) -> Question:
    """Return what is shown of a task, as its data has it, and its right answer where that is a text or a number."""
    try:
        answer = golds(task.data)[0]
    except (KeyError, IndexError):
        answer = ""
    return Question(prompt_text(task.data) if task.data else "", answer)


def _of_source(rows: Rows) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(rows):
        yield rows.where(number), row_text(row)


def _of_run(folder: Path) -> Iterator[tuple[str, str]]:
    config = load_config(folder / "config.json", checked=True)
    if not config.data.train and not config.data.set:
        return
    data = open_data(config.data, config.model.path, reader_of, gold_check)
    for task in data.epoch(0, config.env.name):
        yield task.id, row_text(task.data)


def _of_part(looked: Mapping[str, Any], ids: Set[str]) -> dict[str, Any]:
    """Return what was found of the tasks of one part."""
    return {
        **{key: looked[key] for key in ("n", "rows")},
        "tasks": len(ids),
        **{key: [one for one in looked[key] if one["task"] in ids] for key in ("overlapping", "repeated")},
        "answered": [task for task in looked["answered"] if task in ids],
    }
