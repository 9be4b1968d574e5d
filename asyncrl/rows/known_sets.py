"""The data sets that are known by name (`sets.toml`)."""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from asyncrl.config_sections import DataSource, Section
from asyncrl.errors import ConfigError
from asyncrl.rows.files import COMPRESSED

TABLE = Path(__file__).with_name("sets.toml")
NONE = "none"
"""Stands for no set where one is named."""


class KnownSet(Section):
    """What is known of a data set. A contributor adds one by a table of `sets.toml`."""

    about: str
    """One line for people."""
    licence: str
    path: str = ""
    """Its name on the hub; empty where it is read from files alone."""
    config: str = ""
    train: str = "train"
    """Its split to train on."""
    heldout: str = ""
    """Its split for evaluation; empty where it has none."""
    only: Literal["", "heldout"] = ""
    """"heldout" for a set that is meant for evaluation and has no split to train on."""
    aliases: tuple[str, ...] = ()
    """Parts of file names by which it is found, too."""
    prompt: str = ""
    """As `data.prompt`, and so the following."""
    system: str = ""
    answer: str = ""
    reward: str = ""
    dedupe: bool = False
    format: str = ""
    """The row of the seam `data_formats` that makes tasks of its rows, where another environment judges them."""
    env: str = ""
    """That environment."""
    extra: tuple[str, ...] = ()
    """Columns that are no part of the question, which need not be said to be unused."""

    def source(self, split: str) -> DataSource | None:
        """Return where the hub has the rows of "train" or "heldout"; None where it has none."""
        chosen = self.heldout if split == "heldout" else self.train
        if not self.path or not chosen or (self.only and split != self.only):
            return None
        return DataSource(path=self.path, config=self.config, split=chosen)


@functools.cache
def known_sets() -> dict[str, KnownSet]:
    """Return the data sets that are known, by name."""
    return {
        name: KnownSet.model_validate_json(json.dumps(table))
        for name, table in tomllib.loads(TABLE.read_text()).items()
    }


def known_set(name: str, key: str = "data.set") -> KnownSet | None:
    """Return a set by name, None for "" and "none". Raises `ConfigError` naming `key` and what is allowed."""
    if name in ("", NONE):
        return None
    sets = known_sets()
    if name not in sets:
        close = difflib.get_close_matches(name, sets, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"{key}: unknown data set {name!r}; {hint}allowed: {', '.join(sets)}, or {NONE!r}")
    return sets[name]


def set_of(sources: Any) -> str:
    """Return the name of the set that sources, as the configuration has them, are taken for; "" for none.

    That is the set of a hub name, and otherwise the one with the longest name that is part of a file's name.
    """
    if isinstance(sources, list):
        return next(filter(None, map(set_of, sources)), "")
    path = sources.get("path", "") if isinstance(sources, dict) else getattr(sources, "path", sources)
    if not isinstance(path, str) or not path:
        return ""
    by_hub = {found.path: name for name, found in known_sets().items() if found.path}
    if path in known_sets():
        return path
    if path in by_hub:
        return by_hub[path]
    return _in_file_name(Path(path).name.lower())


def _in_file_name(file: str) -> str:
    if not any(file.endswith((suffix, *(suffix + c for c in COMPRESSED))) for suffix in _suffixes()):
        return ""
    names = [(alias, name) for name, found in known_sets().items() for alias in (name, *found.aliases)]
    for alias, name in sorted(names, key=lambda pair: -len(pair[0])):
        if re.search(rf"(?<![a-z0-9]){re.escape(alias)}(?![a-z0-9])", file):
            return name
    return ""


def _suffixes() -> Sequence[str]:
    from asyncrl.rows.source import FORMATS

    return FORMATS
