"""How the settings of several runs differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def differing_settings(configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `{"key", "values"}` for each setting that is not the same in all runs; `values` by run."""
    flat = {run: _flat(config) for run, config in configs.items()}
    keys = sorted({key for settings in flat.values() for key in settings})
    rows: Iterator[dict[str, Any]] = (
        {"key": key, "values": {run: flat[run].get(key) for run in flat}} for key in keys
    )
    return [row for row in rows if len({repr(value) for value in row["values"].values()}) > 1]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        return {key: inner for name in value for key, inner in _flat(value[name], f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): value}
