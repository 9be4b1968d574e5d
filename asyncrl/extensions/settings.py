"""The settings that extensions add to a run's configuration: sections of their own, and keys of the core's sections.

    [[settings]]
    name = "outer"                     a section of the extension's own
    path = "settings:OuterConfig"      its class

    [[settings]]
    name = "train"                     a section that is there, or a table of such sections by name (policies)
    path = "settings:ReplayConfig"     a class with further keys of it

A recipe writes both kinds alike. The code reads them by their class, which type checkers follow:
`config.section(OuterConfig).url`. What the core has to know of it is a property of its section with a plain value, such
as `EngineConfig.num_machines`, which a class with further keys overrides. Torch-free.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeVar, get_args

from pydantic import create_model

from asyncrl.config_sections import Section, is_section
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows

S = TypeVar("S", bound=Section)


@functools.cache
def composed(root: type[S]) -> type[S]:
    """Return a configuration's class with the sections and keys of the extensions. Raises `ConfigError`."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row.name for row in rows("settings")):
        core = root.model_fields.get(name)
        if core is None:
            kind = _joined(name, [row.load() for row in rows("settings") if row.name == name])
        elif is_section(core.annotation):
            kind = composed_section(name, core.annotation)
        else:
            # A table of such sections by name.
            _, one = get_args(core.annotation)
            found[name] = (dict[str, composed_section(name, one)], core)  # type: ignore[misc]
            continue
        found[name] = (kind, ... if core is not None and core.is_required() else kind())
    return create_model(root.__name__, __base__=root, __doc__=root.__doc__, **found)


@functools.cache
def composed_section(name: str, core: type[S]) -> type[S]:
    """Return the class of a core's section with the keys that extensions add to it. Raises `ConfigError`."""
    return _joined(name, [core, *(row.load() for row in rows("settings") if row.name == name)])


def _joined(name: str, kinds: list[Any]) -> Any:
    """Return a section's class with the keys of several, the first one's before the others'."""
    first, *others = kinds
    if not others:
        return first
    for number, kind in enumerate(kinds):
        if twice := kind.model_fields.keys() & _keys(kinds[:number]):
            raise ConfigError(f"extensions: {name}.{min(twice)} is a key of several")
    return _marked(create_model(first.__name__, __base__=(*reversed(others), first), __doc__=first.__doc__))


def _marked(kind: Any) -> Any:
    kind.composed = True
    return kind


def _keys(kinds: Iterable[type[Section]]) -> set[str]:
    return {key for kind in kinds for key in kind.model_fields}
