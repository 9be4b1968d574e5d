"""`read_rows`: one source of rows, whatever it is, as a sequence that stays on disk."""

from __future__ import annotations

import base64
import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrl.config_sections import DataSource
from asyncrl.errors import ConfigError, InputError
from asyncrl.rows.files import COMPRESSED, TEXT_FORMATS, format_of, read_text_rows, where
from asyncrl.textfile import not_data

if TYPE_CHECKING:
    # It takes a second to import, and few processes read rows.
    import datasets

Table = TypeVar("Table", "datasets.Dataset", "datasets.IterableDataset")

BINARY_FORMATS = (".parquet", ".arrow")
FORMATS = (*TEXT_FORMATS, *BINARY_FORMATS)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
READER = 2
"""Raised where the same file is read otherwise than before, since rows are cached."""
SPLIT = "train"
"""Read where a source has several splits and none is named."""
LOOKED_AT = 200
"""Rows that are looked at for the names of columns, where the rows of a file need not have the same ones."""


class Rows(Sequence[dict[str, Any]]):
    """The rows of a source, `rows[i]` a row as published. They are memory-mapped: only the row asked for is an object.

    A field that is null is absent, whether or not the format can say so.
    """

    def __init__(
        self,
        name: str,
        tables: Sequence[tuple[str, datasets.Dataset]],
        written: bool,
        folders: Sequence[Path] = (),
    ) -> None:
        """tables: file or hub name, and table, one after the other. written: their rows are JSON texts."""
        self.name = name
        """File or hub name, for errors and ids."""
        self.folders = list(dict.fromkeys(folders))
        """Where the files are; none of a data set of the hub."""
        self._tables = [(where, table) for where, table in tables]
        self._starts = [0]
        for _, table in tables:
            self._starts.append(self._starts[-1] + len(table))
        self._written = written
        self._named_apart = len({Path(where).name for where, _ in tables}) == len(tables)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        """Return row `index`, from 0. Raises `IndexError`."""
        _, table, at = self._find(index)
        return _plain(json.loads(table[at]["row"]) if self._written else table[at])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _, table in self._tables:
            for row in table:
                yield _plain(json.loads(row["row"]) if self._written else row)

    def first(self, number: int) -> Rows:
        """Return the first rows alone, known by the same ids."""
        tables, left = [], number
        for name, table in self._tables:
            if left:
                kept = min(left, len(table))
                tables.append((name, table if kept == len(table) else table.select(range(kept))))
                left -= kept
        found = Rows(self.name, tables, self._written, self.folders)
        found._named_apart = self._named_apart
        return found

    @property
    def columns(self) -> list[str]:
        """Names of the columns; where each row has its own, those of the first rows."""
        if not self._written:
            return list(dict.fromkeys(name for _, table in self._tables for name in table.column_names))
        return list(dict.fromkeys(key for i in range(min(len(self), LOOKED_AT)) for key in self[i]))

    @property
    def fingerprint(self) -> str:
        """Equal for the same files as they were when they were read."""
        # The name by which `datasets` knows a table: of its file's content or state, and what was done to it.
        return "\n".join(f"{name} {len(table)} {table._fingerprint}" for name, table in self._tables)

    def row_id(self, index: int) -> str:
        """Return what row `index` is known by, the same whenever the same file is read."""
        where, _, at = self._find(index)
        return f"{Path(where).name if self._local(where) and self._named_apart else where}:{at}"

    def where(self, index: int) -> str:
        """Return how errors name row `index`: with the line of a text file, else with its number from 1."""
        name, table, at = self._find(index)
        return where(name, table[at]["place"]) if self._written else f"{name}, row {at + 1}"

    def _find(self, index: int) -> tuple[str, datasets.Dataset, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name}: row {index} of {len(self)}")
        number = next(n for n, end in enumerate(self._starts[1:]) if index < end)
        return (*self._tables[number], index - self._starts[number])

    def _local(self, where: str) -> bool:
        return self._written or format_of(Path(where)) in BINARY_FORMATS


def read_rows(source: DataSource | str, *, split: str | None = None, key: str = "data.train") -> Rows:
    """Open a source of rows.

    split: for a source that has several and names none. key: the setting that names the source, for errors. Raises
    `ConfigError` for a source that is not there, `InputError` for what cannot be read, naming file, row and what was
    expected.
    """
    if isinstance(source, str):
        source = DataSource(path=source)
    split = source.split or split or ""
    path = Path(source.path).expanduser()
    if path.exists():
        _check_unread(source, path, key)
    if path.is_dir():
        rows = _read_folder(path, split, bool(source.split), key)
    elif path.exists():
        rows = _read_files(source.path, [path], key)
    elif glob.has_magic(source.path):
        rows = _read_matching(source, path, key)
    elif is_local(source.path):
        several = '; several are a list, ["a.jsonl", "b.jsonl"], or a pattern such as "*.jsonl"'
        raise ConfigError(
            f"{key}: there is no file or folder {source.path!r}; expected a file ({', '.join(FORMATS)}, also with "
            f"{' or '.join(COMPRESSED)}), a folder, or a name on the hub{several if ',' in source.path else ''}"
        )
    else:
        from asyncrl.rows.hub import read_hub

        name = "/".join(filter(None, (source.path, source.config, split or SPLIT)))
        rows = Rows(name, [(name, read_hub(source, split or SPLIT, key))], written=False)
    if not len(rows):
        raise InputError(f"{key}: {rows.name}: holds no row")
    return rows.first(source.first) if source.first else rows


def _read_matching(source: DataSource, pattern: Path, key: str) -> Rows:
    """Read the files that a pattern with `*` or `?` matches, in the order of their names."""
    files = [Path(found) for found in sorted(glob.glob(str(pattern), recursive=True))]
    files = [file for file in files if file.is_file()]
    if not files:
        raise ConfigError(f"{key}: no file matches {source.path!r}")
    _check_unread(source, files[0], key)
    return _read_files(source.path, files, key)


def _check_unread(source: DataSource, path: Path, key: str) -> None:
    """Refuse what says nothing of a file or folder. Raises `ConfigError`."""
    for name in ("config", "revision"):
        if value := getattr(source, name):
            raise ConfigError(
                f"{key}: {name}={value!r} is of a data set on the hub, and {source.path!r} is here; leave it out"
            )
    if source.split and path.is_file():
        raise ConfigError(
            f"{key}: split={source.split!r}: {source.path!r} is one file, which has no splits; leave it out"
        )


def is_local(path: str) -> bool:
    """Whether a source can only be a file or folder, there or not, and no name on the hub."""
    named = path.startswith(("/", ".", "~")) or path.count("/") > 1 or not HUB_NAME.fullmatch(path)
    return named or format_of(Path(path)) in FORMATS


def _read_files(name: str, files: Sequence[Path], key: str) -> Rows:
    kinds = {format_of(file) for file in files}
    if unknown := sorted(kinds - set(FORMATS)):
        raise ConfigError(f"{key}: {name}: cannot be read as {unknown[0] or 'a file without suffix'}; "
                          f"expected: {', '.join(FORMATS)}")  # fmt: skip
    if len({kind in TEXT_FORMATS for kind in kinds}) > 1:
        raise ConfigError(f"{key}: {name}: holds files of several kinds: {', '.join(sorted(kinds))}")
    written = kinds <= set(TEXT_FORMATS)
    tables = [(str(f), _text(f) if written else _binary(f, key)) for f in files]
    return Rows(name, tables, written, [file.parent for file in files])


def _read_folder(folder: Path, split: str, asked: bool, key: str) -> Rows:
    """Read a folder that `datasets` saved, or the files in one: those with the split in their names, if any have.

    asked: whether the source itself names the split, which must then be there.
    """
    import datasets

    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        name, place = folder.name, folder
        if splits := _saved_splits(folder):
            chosen = split or SPLIT
            if chosen not in splits:
                raise ConfigError(
                    f"{key}: {folder} has no split {chosen!r}; it has {', '.join(splits)}: name one by "
                    f'{{ path = "{folder.name}", split = "{splits[0]}" }}'
                )
            name, place = f"{folder.name}/{chosen}", folder / chosen
        try:
            state = json.loads((place / "state.json").read_text())
            if not state.get("_data_files", True):
                # `datasets` fails on it.
                raise InputError(f"{key}: {place}: holds no row")
            found = datasets.Dataset.load_from_disk(str(place))
        except Exception as error:
            raise _own_error(error) or InputError(
                f"{key}: {place}: cannot be read: {_first_line(error)}"
            ) from error
        if not splits and asked and split != str(found.split):
            raise ConfigError(
                f"{key}: {folder} was saved without splits, and has no {split!r}; leave split out"
            )
        return Rows(str(folder), [(name, _undecoded(found))], written=False, folders=[folder])
    files = sorted(file for file in folder.iterdir() if file.is_file() and format_of(file) in FORMATS)
    of_split = [file for file in files if split and split in re.split(r"[^a-z]+", file.name.lower())]
    files = of_split if of_split or asked else files
    if not files:
        what = f"of the split {split!r} " if split else ""
        raise ConfigError(f"{key}: {folder}: holds no file {what}to read ({', '.join(FORMATS)})")
    return _read_files(str(folder), files, key)


def _saved_splits(folder: Path) -> list[str]:
    """Return the splits of a folder that `datasets` saved; none of one that was saved without."""
    try:
        return list(json.loads((folder / "dataset_dict.json").read_text())["splits"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'dataset_dict.json'}: cannot be read: {error}") from error


def _text(path: Path) -> datasets.Dataset:
    """Return a text file's rows as JSON texts, from the cache where the file has not changed."""
    import datasets

    state = path.stat()
    kept = datasets.Features(row=datasets.Value("large_string"), place=datasets.Value("int64"))
    with _quiet():
        try:
            # What the file was like is part of what the cache knows it by.
            version = f"{READER}-{state.st_size}-{state.st_mtime_ns}"
            given = {"path": str(path.absolute()), "version": version}
            return datasets.Dataset.from_generator(_json_texts, features=kept, gen_kwargs=given)
        except Exception as error:
            raise _own_error(error) or InputError(f"{path}: cannot be read: {_first_line(error)}") from error


def _json_texts(path: str, version: str) -> Iterator[dict[str, Any]]:
    empty = True
    for place, row in read_text_rows(path):
        empty = False
        yield {"row": json.dumps(row, ensure_ascii=False), "place": place}
    if empty:
        # `datasets` knows no table without rows.
        raise InputError(f"{path}: holds no row")


def _binary(path: Path, key: str) -> datasets.Dataset:
    import datasets
    from pyarrow import parquet

    with _quiet():
        try:
            if path.suffix in COMPRESSED:
                raise ConfigError(
                    f"{key}: {path}: {format_of(path)} is compressed in itself; decompress the file"
                )
            with open(path, "rb") as file:
                if instead := not_data(file.read(1000)):
                    raise InputError(f"{path}: {instead}")
            if format_of(path) == ".arrow":
                return _undecoded(_arrow(path))
            if parquet.read_metadata(path).num_rows == 0:
                # `datasets` fails on it.
                raise InputError(f"{path}: holds no row")
            if maps := [field.name for field in parquet.read_schema(path) if "map<" in str(field.type)]:
                raise InputError(
                    f"{path}: column {maps[0]!r} is a map, which cannot be read; write it as JSON text or as a struct"
                )
            return _undecoded(datasets.Dataset.from_parquet(str(path)))  # type: ignore[arg-type]
        except Exception as error:
            raise _own_error(error) or InputError(f"{path}: cannot be read: {_first_line(error)}") from error


def _arrow(path: Path) -> datasets.Dataset:
    """Return the table of an Arrow file: a stream, as `datasets` writes it, or a file with an index, as Polars does."""
    import datasets
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        if file.read(6) != b"ARROW1":
            return datasets.Dataset.from_file(str(path))
    return datasets.Dataset(pyarrow.ipc.open_file(pyarrow.memory_map(str(path))).read_all())


def _undecoded(table: Table) -> Table:
    """Return a table whose images are their files, which need not be decoded to be shown to a model."""
    import datasets

    for name, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, datasets.Image(decode=False))
        elif isinstance(feature, datasets.List) and isinstance(feature.feature, datasets.Image):
            table = table.cast_column(name, datasets.List(datasets.Image(decode=False)))
    return table


def _quiet() -> Any:
    """Return a context in which `datasets` draws no progress bars of its own."""
    import contextlib

    import datasets

    stack = contextlib.ExitStack()
    if datasets.are_progress_bars_disabled():
        return stack
    datasets.disable_progress_bars()
    stack.callback(datasets.enable_progress_bars)
    return stack


def _own_error(error: BaseException | None) -> ConfigError | InputError | None:
    """Return the error of ours that an exception of `datasets` was raised for."""
    while error is not None:
        if isinstance(error, ConfigError | InputError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _first_line(error: BaseException) -> str:
    """Return what the innermost cause of an exception says."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, without fields that are null."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
