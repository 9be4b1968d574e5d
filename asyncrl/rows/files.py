"""Rows of text files (JSON lines, JSON lists, CSV), kept as they are written.

Each row is stored as its JSON text in a memory-mapped Arrow file that `datasets` caches. Types that a table would force
on a column change values: a text that looks like a date becomes one, a long integer becomes a float, and a field of two
types is refused.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from asyncrl.errors import ConfigError, InputError
from asyncrl.textfile import BOM, json_records, loads, not_data, not_utf8, open_bytes, plain_suffix
from asyncrl.textfile import SUFFIXES as COMPRESSED

JSON_LINES = (".jsonl", ".ndjson")
TABLES = {".csv": ",", ".tsv": "\t"}
TEXT_FORMATS = (*JSON_LINES, ".json", *TABLES)
INDEX = "Unnamed: 0"
"""What pandas calls a first column without a name when it reads it again."""
_SEPARATORS = {"sep=;": ";", "sep=,": ",", "sep=\t": "\t", "sep=": "\t"}
"""Of Excel, in a first line of its own."""
PEEK_BYTES = 2**16
MAX_CELL = 2**27
"""Characters of a cell of a CSV file."""

__all__ = ["COMPRESSED", "TEXT_FORMATS", "format_of", "read_text_rows", "where"]


def format_of(path: Path) -> str:
    """Return the suffix that says how a file is written, without that of its compression."""
    return plain_suffix(path).lower()


def read_text_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the place and the fields of each row: the line of JSON lines and CSV, the number in a list.

    Fields that are null are absent. Fields of CSV are texts, and empty ones are absent. Raises `InputError` naming
    file, place and what is wrong, `ConfigError` for a file that cannot be read.
    """
    path = Path(path)
    kind = format_of(path)
    if kind in TABLES:
        yield from _cells(path, TABLES[kind])
    elif (kind == ".json" and _is_list(path)) or (kind in JSON_LINES and _begins_list(path)):
        yield from _items(path)
    else:
        yield from json_records(path)


def where(path: str, place: int) -> str:
    """Return how errors name a row of a text file."""
    return f"{path}, {'row' if format_of(Path(path)) == '.json' else 'line'} {place}"


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a text file, decompressed; its errors are the user's."""
    try:
        with open_bytes(path) as file:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {not_utf8(path)}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _is_list(path: Path) -> bool:
    """Whether a .json file is one value, and not JSON lines."""
    with _opened(path) as file:
        lines = list(itertools.islice((text for line in file if (text := line.strip())), 2))
    return len(lines) < 2 or not (lines[0].startswith("{") and _parses(lines[0]))


def _begins_list(path: Path) -> bool:
    """Whether a file of JSON lines is one list instead, as it is named so often."""
    try:
        with open_bytes(path) as file:
            return file.read(PEEK_BYTES).removeprefix(BOM).lstrip().startswith(b"[")
    except (OSError, EOFError, zlib.error):
        # Whoever reads it says what is wrong.
        return False


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _items(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _opened(path) as file:
        text = file.read()
    if instead := not_data(text[:1000].encode()):
        raise InputError(f"{path}: {instead}")
    try:
        found = loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON: {error}") from error
    if isinstance(found, dict):
        lists = [value for value in found.values() if isinstance(value, list) and any(map(_is_object, value))]
        columns = bool(found) and all(isinstance(value, list) for value in found.values())
        by_number = found and all(
            isinstance(value, dict) and value and all(name.isdecimal() for name in value)
            for value in found.values()
        )
        if by_number:
            raise InputError(
                f"{path}: holds columns by the numbers of their rows, as pandas writes them; write it with "
                "to_json(path, orient='records', lines=True)"
            )
        if len(lists) > 1 or (columns and not lists):
            raise InputError(
                f"{path}: must hold a list of objects, or an object with one such list; got an object with "
                f"{', '.join(map(repr, list(found)[:8]))}"
            )
        found = lists[0] if lists else [found]
    if not isinstance(found, list):
        raise InputError(f"{path}: must hold a list of objects, got {type(found).__name__}")
    for number, item in enumerate(found, 1):
        if not isinstance(item, dict):
            raise InputError(f"{path}, row {number}: must be an object, got {type(item).__name__}")
        yield number, item


def _cells(path: Path, delimiter: str) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(MAX_CELL)
    with _opened(path) as file:
        file.reconfigure(newline="")  # type: ignore[attr-defined]
        first = file.readline()
        if instead := not_data(first.encode()):
            raise InputError(f"{path}: {instead}")
        if first.strip().lower() in _SEPARATORS:
            delimiter, first = _SEPARATORS[first.strip().lower()], ""
        elif delimiter == "," and "," not in first:
            # What Excel writes where the comma is in decimals, and tables that were renamed.
            delimiter = next((one for one in ";\t" if one in first), delimiter)
        reader = csv.reader(itertools.chain([first] if first else [], file), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if len(header) > 1 and not header[0]:
                # The numbers of rows, which pandas writes by itself.
                header[0] = INDEX
            if len(set(header)) < len(header) or not all(header):
                raise InputError(f"{path}, line 1: must name each column once, got {', '.join(header)!r}")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise InputError(
                        f"{path}, line {reader.line_num}: has {len(cells)} cells; expected {len(header)}: "
                        f"{', '.join(header)}"
                    )
                yield (
                    reader.line_num,
                    {k: v for k, v in zip(header, cells, strict=True) if v != "" and k != INDEX},
                )
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: no CSV: {error}") from error
