"""What the readers share: the records of a file, and errors that name file, line and what is expected."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asyncrl.errors import ConfigError, InputError
from asyncrl.textfile import BOM, json_records, loads, open_bytes, read_text, record_of
from asyncrl.types import Task

log = logging.getLogger("asyncrl.evaluation")

FORMATS = ("math", "humaneval", "mbpp", "livecodebench", "bfcl", "bfcl_multi_turn", "ifeval")
"""Modules of this package; `extension.toml` has a row for each."""
PEEK_BYTES = 4096
"""How far into a file is looked for what it is."""


KEPT = ("tags", "difficulty", "level")
"""Fields that results are broken down by."""


class Imported(NamedTuple):
    """A record as a task: its id, "" where it has none, and what its environment needs."""

    id: str
    data: dict[str, Any]


class NeverRight(ValueError):
    """A record whose answer no answer of a model can match."""


class Importer(Protocol):
    """A module of this package."""

    @property
    def ENV(self) -> str:
        """Import path of the environment that plays and judges the tasks."""
        ...

    @property
    def EXPECTED(self) -> str:
        """What a record must hold, for errors."""
        ...

    def read(self, record: Mapping[str, Any]) -> Imported:
        """Return a record as a task. Raises `ValueError`, `KeyError` and `TypeError` for one that is none."""
        ...


def importer(name: str, setting: str = "format") -> Importer:
    """Return a format's module. Raises `ConfigError` naming the setting."""
    if name not in FORMATS:
        raise ConfigError(f"{setting}: unknown format {name!r}; allowed: {', '.join(FORMATS)}")
    return importlib.import_module(f"asyncrl.extensions.benchmarks.importers.{name}")  # type: ignore[return-value]


def reader_of(name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what makes a task's data of a row in a benchmark's format. Raises `ConfigError` for an unknown format."""
    module = importer(name)

    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        return dict(module.read(row).data)

    return read


def import_tasks(name: str, path: str | Path) -> list[Task]:
    """Read a benchmark file: JSON lines, a JSON list, or Parquet.

    Raises `ConfigError` for a file that cannot be read, `InputError` naming the line and what is expected.
    """
    module = importer(name)
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    never: dict[str, str] = {}
    unread: dict[str, None] = {}
    for number, record in _records(Path(path)):
        where = f"{path}, line {number}"
        try:
            found = module.read(record)
        except NeverRight as error:
            never[where] = str(error)
            continue
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wrong = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"{where}: {wrong}; expected: {module.EXPECTED}") from error
        task_id = found.id or f"{Path(path).stem}-{number}"
        if task_id in seen:
            raise InputError(f"{where}: id {task_id!r} stands on line {seen[task_id]} already")
        seen[task_id] = number
        kept = {key: record[key] for key in KEPT if key in record}
        unread |= dict.fromkeys(key for key in record if key not in (*KEPT, *getattr(module, "READ", record)))
        tasks.append(Task(task_id, module.ENV, number, "heldout", {**kept, **found.data}))
    if never:
        where, why = next(iter(never.items()))
        raise InputError(
            f"{where}: {why}; {len(never)} of {len(never) + len(tasks)} records have an answer that nothing can match: "
            f"mend them or leave them out; expected: {module.EXPECTED}"
        )
    if not tasks:
        raise InputError(f"{path}: holds no task; expected: {module.EXPECTED}")
    if unread:
        # A question that lacks a part of itself cannot be answered, and nothing else would say so.
        log.warning("%s: fields that no question shows: %s", path, ", ".join(unread))
    return tasks


def text(record: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields that is there. Raises `KeyError`, `TypeError`."""
    name = next((name for name in names if name in record), None)
    if name is None:
        raise KeyError(" or ".join(names))
    if not isinstance(record[name], str):
        raise TypeError(f"{name}: must be text, got {record[name]!r:.80}")
    return record[name]


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the number of a line (of a list or Parquet: of an item) and its object."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            found: list[Any] = pyarrow.parquet.read_table(path).to_pylist()
        elif _is_list(path):
            found = loads(read_text(path))
        else:
            yield from json_records(path)
            return
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for number, one in enumerate(found, 1):
        yield number, record_of(one, str(path), number)


def _is_list(path: Path) -> bool:
    """True for a file that is one JSON list."""
    with open_bytes(path) as file:
        return file.read(PEEK_BYTES).removeprefix(BOM).lstrip().startswith(b"[")
