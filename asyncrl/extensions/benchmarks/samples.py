"""The samples of an evaluation: a file of JSON lines that is only ever appended to, so that a killed one goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.data.transcript import written_messages
from asyncrl.errors import ConfigError
from asyncrl.evaluation.rows import episode_rows
from asyncrl.extensions.benchmarks.suite import Suite
from asyncrl.file_lock import own
from asyncrl.jsonfile import read_json
from asyncrl.textfile import parse_lines
from asyncrl.types import EXTRACTED, Group, Task

FILE = "samples.jsonl"
RECORD = "evaluation.json"
"""What was evaluated on what, beside the samples."""


def read_record(folder: Path, suite: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a folder says was evaluated in it; None for a new one.

    suite: what is to be evaluated now, as JSON has it. Raises `ConfigError` where the folder holds something else.
    """
    record = read_json(folder / RECORD)
    if record is None:
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"--out {folder}: is not empty and holds no evaluation; give another folder")
        return None
    before = record["suite"]
    for key in suite:
        if suite[key] != before.get(key):
            raise ConfigError(
                f"--out {folder}: holds an evaluation on suite {before['name']!r} version {before['version']} with "
                f"another {key}; give another folder"
            )
    return record


def add_checkpoint(folder: Path, known: dict[str, Any], checkpoint: str, settings: Mapping[str, Any]) -> None:
    """Add a checkpoint to those of a record, with its files and the settings that it is evaluated with.

    Raises `ConfigError` where it is there with others.
    """
    for key, value in known.setdefault(checkpoint, settings).items():
        if value != settings[key]:
            wrong = "has changed since" if key == "files" else f"was evaluated with other settings of {key}"
            raise ConfigError(f"--out {folder}: {checkpoint!r} {wrong}; give another folder")


def sample_id(checkpoint: str, task: str, sample: int) -> str:
    """Return the id of one episode. task: its id in the suite, which names its part."""
    return f"{checkpoint}:{task}:{sample}"


def sample_rows(
    group: Group, checkpoint: str, suite: Suite, name: str, task: Task
) -> Iterator[dict[str, Any]]:
    """Yield a row for each episode of a task that has been played. name, task: of the part, and its own."""
    part = suite.parts[name]
    tags = [*part.tags, *(str(tag) for tag in task.data.get("tags", ()))]
    difficulty = task.data.get("difficulty", task.data.get("level", part.difficulty))
    shared = {
        "checkpoint": checkpoint,
        "part": name,
        "tags": list(dict.fromkeys(tags)),
        "difficulty": None if difficulty is None else str(difficulty),
    }
    for row, t in zip(episode_rows([group], suite.samples), group.trajectories, strict=False):
        yield {
            "id": sample_id(checkpoint, group.task.id, row["sample"]),
            **shared,
            **row,
            "env": part.env,
            **({"harness": part.harness} if part.harness else {}),
            "components": t.components,
            "wall_s": t.timing.get("wall_s"),
            "error": t.error,
            "extracted": t.info.get(EXTRACTED),
            "messages": written_messages(t.conversation, len(t.turns)),
        }


class SampleFile:
    """The samples of one evaluation; one process at a time may add to them."""

    def __init__(self, folder: Path) -> None:
        """Open or make the file. Raises `ConfigError` where another process adds to it."""
        self.path = folder / FILE
        self._fd = own(self.path, f"{self.path}: another evaluation is adding to it", os.O_APPEND, 0o644)
        written = self.path.read_bytes()
        whole = written.rfind(b"\n") + 1
        # A line that a kill has torn is played again.
        os.ftruncate(self._fd, whole)
        self.rows: list[dict[str, Any]] = parse_lines(written[:whole])
        self._ids = {row["id"] for row in self.rows}

    def __contains__(self, one: str) -> bool:
        return one in self._ids

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows whose ids are not there yet, at once."""
        new = [dict(row) for row in rows if row["id"] not in self._ids]
        text = "".join(json.dumps(row, separators=(",", ":"), default=str) + "\n" for row in new).encode()
        while text:
            text = text[os.write(self._fd, text) :]
        self.rows += new
        self._ids.update(row["id"] for row in new)

    def close(self) -> None:
        os.close(self._fd)


def missing_tasks(file: SampleFile, checkpoint: str, tasks: Sequence[Task], samples: int) -> list[Task]:
    """Return the tasks of which an episode is missing."""
    return [
        task
        for task in tasks
        if any(sample_id(checkpoint, task.id, index) not in file for index in range(samples))
    ]
