"""The formats of data sets whose tasks other environments judge (`KnownSet.format`): the seam `data_formats`."""

from __future__ import annotations

from asyncrl.errors import ConfigError
from asyncrl.extensions.table import by_name
from asyncrl.rows.scan import Reader


def reader_of(name: str) -> Reader:
    """Return what makes a task's data of a row in a format. Raises `ConfigError` for an unknown one."""
    known = by_name("data_formats")
    if name not in known:
        raise ConfigError(f"format: unknown format {name!r}; allowed: {', '.join(known)}")
    found: Reader = known[name].load()(name)
    return found
