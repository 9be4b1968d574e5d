"""What other installed packages add to a run: each is an entry point that a recipe's `[extensions]` asks for.

    [project.entry-points."asyncrl.trainer_callbacks"]
    NAME = "module:factory"

A factory's keyword-only parameters are its settings, as those of an algorithm's function are. They are checked in its
source: nothing is imported before the trainer runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from asyncrl.errors import ConfigError, did_you_mean
from asyncrl.import_path import accepts, load_object, top_level_names

TRAINER_CALLBACKS = "asyncrl.trainer_callbacks"
"""The group of entry points that make callbacks of the trainer, see `asyncrl.train.loop.callbacks`."""


def installed(group: str) -> dict[str, str]:
    """Return the import paths of a group's entry points, by name."""
    return {found.name: found.value for found in entry_points(group=group)}


def extension_problems(group: str, asked: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong of extensions that a recipe asks for, by name, with settings. Imports none of them."""
    there = installed(group)
    for name, settings in asked.items():
        where = _key(group, name)
        if name not in there:
            yield _missing(where, name, group, there)
            continue
        try:
            yield from _setting_problems(where, there[name], settings)
        except ConfigError as error:
            yield str(error)


def _setting_problems(where: str, path: str, settings: Mapping[str, Any]) -> Iterator[str]:
    module, _, function = path.partition(":")
    known = top_level_names(where, module)
    if function not in known:
        yield f"{where}: module {module} has no function {function!r}{did_you_mean(function, known)}"
        return
    found = known[function]
    if not isinstance(found, ast.FunctionDef):
        # It is made or imported there, and its parameters are not known before it is called.
        return
    takes = {one.arg: one.annotation for one in found.args.kwonlyargs}
    for key, value in settings.items():
        if key not in takes:
            yield f"{where}.{key}: {path} has no such parameter{did_you_mean(key, takes)}"
        elif not accepts(takes[key], value):
            annotation = takes[key]
            allowed = ast.unparse(annotation) if annotation is not None else ""
            yield f"{where}.{key}: got {value!r}, allowed: {allowed}"
    defaults = zip(found.args.kwonlyargs, found.args.kw_defaults, strict=True)
    for one in (one.arg for one, default in defaults if default is None and one.arg not in settings):
        yield f"{where}.{one}: {path} needs this parameter"


def load_extension(group: str, name: str) -> Any:
    """Return what an extension's entry point names. Raises `ConfigError` where it is not installed, or fails."""
    where, there = _key(group, name), installed(group)
    if name not in there:
        raise ConfigError(_missing(where, name, group, there))
    return load_object(where, there[name])


def _key(group: str, name: str) -> str:
    """Return the key of a recipe that asks for an extension."""
    return f"extensions.{group.partition('.')[2]}.{name}"


def _missing(where: str, name: str, group: str, there: Mapping[str, str]) -> str:
    return f"{where}: no installed package has this entry point in the group {group!r}{did_you_mean(name, there)}"
