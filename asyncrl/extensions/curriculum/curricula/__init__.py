"""Curricula, a file each, and the names that recipes give them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from asyncrl.errors import ConfigError, did_you_mean
from asyncrl.extensions.curriculum.curriculum import Curriculum
from asyncrl.extensions.curriculum.fitted_length import FittedLength
from asyncrl.import_path import load_object
from asyncrl.types import Task

FILE_ORDER = "file_order"
"""No curriculum: tasks come in the order of the environment's list or of the task file."""
_HERE = "asyncrl.extensions.curriculum.curricula."
CURRICULA = {
    "gdro": _HERE + "gdro:GDRO",
    "insight": _HERE + "insight:InSight",
    "paced": _HERE + "paced:Paced",
    "similarity": _HERE + "similarity:Similarity",
    "staged": _HERE + "staged:Staged",
    "uniform": _HERE + "uniform:Uniform",
    "v0": _HERE + "v0:V0",
    "vade": _HERE + "vade:VADE",
    "window": _HERE + "window:DifficultyWindow",
    "xrpo": _HERE + "xrpo:XRPO",
}
GIVEN = ("tasks", "group_size", "seed")
"""Arguments of every curriculum that are not settings."""

Factory = Callable[[Sequence[Task]], Curriculum]


def factory(
    name: str, settings: Mapping[str, Any], group_size: int, seed: int, turn_slack: float = 0.0
) -> Factory | None:
    """Return what makes a run's curriculum of its pool; None for `FILE_ORDER`.

    name: one of `CURRICULA`, or an import path. turn_slack: see `FittedLength`, 0 for no limits. Raises `ConfigError`
    naming the key, the value and what is allowed.
    """
    if name == FILE_ORDER:
        if settings:
            raise ConfigError(f"curriculum.settings.{min(settings)}: {FILE_ORDER!r} has no settings")
        return None
    if name not in CURRICULA and ":" not in name:
        raise ConfigError(
            f"curriculum.name: unknown name {name!r}{did_you_mean(name, [FILE_ORDER, *CURRICULA])}, or an import path"
        )
    made = load_object("curriculum.name", CURRICULA.get(name, name))
    if not (isinstance(made, type) and issubclass(made, Curriculum)):
        raise ConfigError(
            f"curriculum.name: {name!r} is no asyncrl.extensions.curriculum.curriculum.Curriculum"
        )
    _check_settings(name, made, settings)

    def make(tasks: Sequence[Task]) -> Curriculum:
        try:
            curriculum = made(tasks, group_size, seed, **settings)
            return FittedLength(curriculum, turn_slack) if turn_slack else curriculum
        except (TypeError, ValueError) as error:
            key = str(error).partition(":")[0]
            where = "curriculum.settings." if key in settings else f"curriculum.name: {name!r}: "
            raise ConfigError(f"{where}{error}") from error

    if name in CURRICULA:
        # One of the user's own may need tasks; it is made of the run's before that begins.
        make(())
    return make


def _check_settings(name: str, made: type[Curriculum], settings: Mapping[str, Any]) -> None:
    """Check names and types by the constructor's signature."""
    parameters = inspect.signature(made).parameters
    try:
        hints = typing.get_type_hints(made.__init__)
    except Exception:
        # Annotations may use names that exist for type checkers only.
        hints = {}
    allowed = [key for key in parameters if key not in GIVEN]
    for key, value in settings.items():
        if key not in allowed:
            raise ConfigError(
                f"curriculum.settings.{key}: {name!r} has no such setting{did_you_mean(key, allowed)}"
            )
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hints.get(key, Any))
        try:
            adapter.validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ConfigError(
                f"curriculum.settings.{key}: {message[0].lower()}{message[1:]}, got {value!r}"
            ) from None
