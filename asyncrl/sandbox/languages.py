"""Language profiles: how a source text becomes a running program."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import Limits
from asyncrl.textfile import read_toml

BUILT_IN = Path(__file__).with_name("languages.toml")


@dataclass(frozen=True, slots=True)
class Language:
    """One entry of a profile file; see the head of languages.toml."""

    name: str
    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)


def _parse(name: str, table: dict[str, Any], source: Path) -> Language:
    allowed = {f.name for f in fields(Language)} - {"name"}
    if unknown := set(table) - allowed:
        raise ConfigError(
            f"{source}: language {name!r} has unknown keys {sorted(unknown)}; allowed: {sorted(allowed)}"
        )
    for key in ("file", "run"):
        if not table.get(key):
            raise ConfigError(f"{source}: language {name!r} needs a non-empty {key!r}")
    for key in ("run", "compile", "packages"):
        value = table.get(key, [])
        if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise ConfigError(
                f"{source}: language {name!r}: {key!r} must be a list of strings, got {value!r}"
            )
    if "/" in table["file"] or table["file"].startswith("."):
        raise ConfigError(
            f"{source}: language {name!r}: 'file' must be a plain file name, got {table['file']!r}"
        )
    try:
        limits = Limits(**table.get("limits", {}))
    except TypeError as error:
        raise ConfigError(f"{source}: language {name!r}: limits: {error}") from error
    lists = {key: tuple(table.get(key, [])) for key in ("run", "compile", "packages")}
    return Language(name=name, file=table["file"], limits=limits, **lists)


def load(path: str | Path) -> dict[str, Language]:
    """Read a profile file. Raises `ConfigError` naming the file, language and key that is wrong."""
    source = Path(path)
    try:
        tables = read_toml(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"language profiles {source}: {error}") from error
    return {name: _parse(name, table, source) for name, table in tables.items()}


@functools.cache
def built_in() -> dict[str, Language]:
    return load(BUILT_IN)


_added: dict[str, Language] = {}


def add(path: str | Path) -> None:
    """Make the profiles of a file available by name; they override built-in ones."""
    _added.update(load(path))


def names() -> list[str]:
    return sorted(built_in() | _added)


def get(name: str) -> Language:
    """Raises `ConfigError` for an unknown language."""
    found = _added.get(name) or built_in().get(name)
    if found is None:
        raise ConfigError(f"unknown language {name!r}; allowed: {', '.join(names())}")
    return found
