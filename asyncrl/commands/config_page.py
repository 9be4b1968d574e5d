"""The page of all settings, docs/configuration.md: `asyncrl config --markdown` prints it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic.fields import FieldInfo

from asyncrl.algo.settings import AlgoConfig
from asyncrl.config import Config
from asyncrl.config_sections import SELDOM, PolicyConfig, Section, is_section
from asyncrl.extensions.settings import composed, composed_section

HEAD = """# Configuration

<!-- Generated: asyncrl config --markdown > docs/configuration.md -->

All settings of a run, by section. A recipe sets some of them, in TOML; the others have the defaults below. `base` at
the top of a recipe names settings to build on ([recipes](../recipes/README.md)), and `section.key=value` on the command
line changes one for one run. Unknown keys and wrong values are refused before anything starts. `asyncrl config NAME`
prints what a recipe comes to, and `asyncrl train --resume runs/NAME section.key=value` changes a run that has begun,
except for its `run`, `model`, `env`, `algo`, `lora` and `policies`.

Names that end in `_s` are in seconds; `0` and `""` often mean "choose for me", as said.

First come the settings that people change. Those that most runs leave alone have
[tables of their own](#settings-that-are-seldom-changed) below.
"""
SELDOM_HEAD = """# Settings that are seldom changed
"""
SHOWN_CHARACTERS = 60
"""The characters that are shown of a long default."""
BOUNDS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))
WORDS = {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}


@dataclass(frozen=True, slots=True)
class Row:
    """A setting's line in its table."""

    cells: tuple[str, str, str, str]
    seldom: bool = False


@dataclass(frozen=True, slots=True)
class SectionText:
    """A section's name, what it is about, and its settings."""

    name: str
    text: str
    rows: list[Row]


def markdown() -> str:
    """Return the page."""
    sections = list(_sections())
    parts = [HEAD]
    for one in sections:
        if everyday := [row for row in one.rows if not row.seldom]:
            parts.append(_table(f"## {one.name}\n\n{one.text}", everyday))
    parts.append(SELDOM_HEAD)
    for one in sections:
        if seldom := [row for row in one.rows if row.seldom]:
            parts.append(_table(f"## Further settings of `{one.name}`", seldom))
    return "\n".join(parts)


def _sections() -> Iterator[SectionText]:
    for name, field in composed(Config).model_fields.items():
        if name == "algo":
            yield _algo()
        elif name == "policies":
            kind = composed_section(name, PolicyConfig)
            yield _section("policies.NAME", kind, "Any number of them; see [policies](policies.md).")
        else:
            yield _section(name, typing.cast(type[Section], field.annotation))


def _section(name: str, section: type[Section], more: str = "") -> SectionText:
    return SectionText(name, f"{_linked(section.__doc__ or '')} {more}".strip(), list(_rows(name, section)))


def _rows(name: str, section: type[Section]) -> Iterator[Row]:
    """Yield a row for each key, those of tables inside the section included."""
    texts = descriptions(section)
    for key, field in section.model_fields.items():
        if is_section(field.annotation):
            yield from _rows(f"{name}.{key}", field.annotation)
        else:
            yield Row(_cells(f"{name}.{key}", field, texts.get(key, "")), SELDOM in field.metadata)


def descriptions(section: type[Section]) -> dict[str, str]:
    """Return the texts that stand below the fields of a section's class."""
    found: dict[str, str] = {}
    for above in reversed(section.__mro__):
        if issubclass(above, Section) and not above.composed:
            (definition,) = ast.parse(inspect.getsource(above)).body
            assert isinstance(definition, ast.ClassDef)
            for field, text in pairwise(definition.body):
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                ):
                    found[field.target.id] = str(text.value.value)
    return found


def _algo() -> SectionText:
    preset = (
        "`algo.preset`",
        '`"grpo"`',
        "[a preset](algorithms/presets.md)",
        "The published method to start from.",
    )
    return SectionText("algo", _linked(AlgoConfig.__doc__ or ""), [Row(preset), *_rows("algo", AlgoConfig)])


def _choices(values: Iterable[Any]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


def _cells(dotted: str, field: FieldInfo, text: str) -> tuple[str, str, str, str]:
    default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
    return f"`{dotted}`", default, _allowed(field), _linked(text)


def _linked(text: str) -> str:
    """Return a text on one line, with links to the pages that it names."""
    return re.sub(r"docs/((?:[\w-]+/)*)([\w-]+)\.md", r"[\2](\1\2.md)", " ".join(text.split()))


def _default(value: Any) -> str:
    if value is None:
        return "none"
    text = json.dumps(value)
    if len(text) > SHOWN_CHARACTERS and isinstance(value, str):
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return f"`{text}`"


def _allowed(field: FieldInfo) -> str:
    return ", ".join([_kind(field.annotation), *_bounds(field.metadata)])


def _kind(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return _choices(inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(one) for one in inner if one is not type(None))
    if origin is Annotated:
        return ", ".join([_kind(inner[0]), *_bounds(list(inner[1].metadata))])
    if origin is list:
        numbers = typing.get_args(inner[0])[:1] == (int,)
        tables = any(
            isinstance(one, type | types.GenericAlias) and one not in WORDS
            for one in typing.get_args(inner[0])
        )
        return "list of whole numbers" if numbers else f"list of texts{' or tables' if tables else ''}"
    if origin is tuple:
        return f"list of {len(inner)} numbers"
    if origin is dict:
        return "table"
    return "table" if is_section(annotation) else WORDS[annotation]


def _bounds(metadata: list[Any]) -> Iterator[str]:
    for one in metadata:
        for kind, attribute, words in BOUNDS:
            if isinstance(one, kind):
                yield f"{words} {_bound(getattr(one, attribute))}"
        if isinstance(one, MultipleOf):
            yield f"a multiple of {one.multiple_of}"
        if pattern := getattr(one, "pattern", None):
            yield f"`{pattern}`"


def _bound(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _table(head: str, rows: list[Row]) -> str:
    lines = [head, "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells) + " |" for row in rows]
    return "\n".join(lines) + "\n"
