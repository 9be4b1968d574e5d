"""Files of text that people bring: JSON lines, JSON and TOML, plain or compressed.

Text is UTF-8, with or without a byte order mark. A line ends at "\\n" and nowhere else: U+2028, U+0085 and the others
at which `str.splitlines` ends a line stand unescaped in valid JSON (RFC 8259).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from asyncrl.errors import ConfigError, InputError

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
SUFFIXES = (".gz", ".zst")
BLANK = b" \t\r\n"
"""What JSON allows between values; a line of nothing else is skipped."""
MOST_LAYERS = 3
"""How often a file may be compressed: what is compressed on its way is compressed again by whoever keeps it."""
POINTER = b"version https://git-lfs.github.com/"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
WIDE = (b"\xff\xfe", b"\xfe\xff")
"""How UTF-16 begins, which some editors and shells write."""
RECODE = "save it as UTF-8, such as by iconv -f WINDOWS-1252 -t UTF-8"
"""What to do with a file of another encoding, in errors."""


@contextlib.contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed where it begins as gzip or zstd does. Raises `OSError`; reading a damaged
    one raises `OSError` or `EOFError`."""
    with contextlib.ExitStack() as held:
        file: IO[bytes] = held.enter_context(open(path, "rb"))
        start = file.read(len(ZSTD))
        file.seek(0)
        if start.startswith(GZIP):
            for _ in range(MOST_LAYERS):
                unpacked: Any = gzip.GzipFile(fileobj=file, mode="rb")
                layer: Any = held.enter_context(io.BufferedReader(held.enter_context(unpacked)))
                file = layer
                if not layer.peek(2).startswith(GZIP):
                    break
        elif start == ZSTD or Path(path).suffix == ".zst":
            # Loaded for such files only.
            import pyarrow

            stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), "zstd")
            file = held.enter_context(io.BufferedReader(stream))
        yield file


def not_data(start: bytes) -> str:
    """Return what a file is that begins so, where it stands in the place of the data that was meant; "" for others."""
    if start.startswith(POINTER):
        return "is a pointer of Git LFS, not the file itself; fetch that with git lfs pull"
    if start.lstrip(BLANK).lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not data; download the file itself"
    return ""


def plain_suffix(path: str | Path) -> str:
    """Return what a file's name ends with, without that of its compression: ".jsonl" of "tasks.jsonl.gz"."""
    name = Path(path)
    return (name.with_suffix("") if name.suffix in SUFFIXES else name).suffix


def read_text(path: str | Path) -> str:
    """Return a file's text without a byte order mark. Raises `OSError`, and `ValueError` for what is no UTF-8."""
    try:
        with open_bytes(path) as file:
            written = file.read()
    except (EOFError, zlib.error) as error:
        raise OSError(f"damaged: {error}") from error
    return _decoded(written)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises `OSError`, `ValueError` (also `tomllib.TOMLDecodeError`)."""
    # CRLF and a mark at its start are what editors of some systems write; a lone CR is refused, as TOML asks.
    return tomllib.loads(read_text(path))


def json_lines(path: str | Path, setting: str = "") -> Iterator[tuple[int, Any]]:
    """Yield the number of each line that is not blank, from 1, and its value.

    setting: names the file in errors. Raises `ConfigError` for a file that cannot be read, `InputError` naming the line
    that is no JSON.
    """
    where = f"{setting}: {path}" if setting else str(path)
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                # A file that was put together of several has a mark where each began.
                line = line.removeprefix(BOM).strip(BLANK)
                if line:
                    yield number, _value(line, f"{where}, line {number}")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"damaged: {error}"
        raise ConfigError(f"{where}: cannot be read: {reason}") from error


def json_records(path: str | Path, setting: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line and its object, without the fields that are null: tables are written with null
    where a row lacks a column. Raises as `json_lines` does, and `InputError` for a line that is no object."""
    for number, value in json_lines(path, setting):
        yield number, record_of(value, f"{setting}: {path}" if setting else str(path), number)


def record_of(value: Any, where: str, number: int) -> dict[str, Any]:
    """Return an item of a file, its number counted from 1, as `json_records` does. Raises `InputError`."""
    if not isinstance(value, dict):
        raise InputError(f"{where}, line {number}: must be an object, got {type(value).__name__}")
    return {key: one for key, one in value.items() if one is not None}


def loads(text: str) -> Any:
    """Return the value of JSON that others wrote.

    Raises `ValueError` for what is no JSON, for an object that has a key twice, of which one would be lost, and for
    half of a surrogate pair, which no file can hold.
    """
    value = json.loads(text, object_pairs_hook=_once)
    if _SURROGATE.search(text) is not None:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(
                f"holds half of a surrogate pair, \\u{ord(half):04x}, which is no character"
            ) from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands in one object twice")
    return found


def parse_lines(written: str | bytes) -> list[Any]:
    """Return the values of JSON lines in memory. Raises `ValueError`."""
    data = written.encode("utf-8", "surrogatepass") if isinstance(written, str) else written
    lines = (line.removeprefix(BOM).strip(BLANK) for line in data.split(b"\n"))
    return [json.loads(line) for line in lines if line]


def _value(line: bytes, where: str) -> Any:
    try:
        return loads(_decoded(line))
    except RecursionError:
        raise InputError(f"{where}: no JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: {not_data(line) or f'no JSON: {_why(line, error)}'}") from error


def _why(line: bytes, error: ValueError) -> str:
    """Return what is wrong with a line of JSON lines, in words of the file and not of a parser."""
    reason = str(error)
    if reason.startswith("Extra data"):
        return (
            "lines end in CR alone; save them with LF" if b"\r" in line else "it holds more than one value"
        ) + f" ({reason})"
    if line in (b"{", b"["):
        return "one value goes over several lines, where each line holds one; save the file as .json"
    if re.match(rb"\{\s*'", line):
        return "it is written as Python writes it, with single quotes; use json.dumps"
    if not line.strip(b"\0"):
        return "it holds NUL bytes alone, as after a crash of the machine that wrote it"
    return reason


def not_utf8(path: str | Path) -> str:
    """Return where a file is no UTF-8, and what to do. It can be read otherwise. Raises `OSError`, `EOFError`."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith(WIDE):
                return "is UTF-16; save it as UTF-8"
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                shown = line[max(0, error.start - 20) : error.start + 20].decode("latin-1").strip()
                return f"is not UTF-8: line {number}, near {shown!r}; {RECODE}"
    return f"is not UTF-8; {RECODE}"


def _decoded(written: bytes) -> str:
    if written.startswith(WIDE):
        raise ValueError("is UTF-16; save it as UTF-8")
    try:
        return written.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start}; {RECODE}") from error
