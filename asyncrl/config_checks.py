"""Every check across the sections of a configuration, made before anything starts. Imports no torch.

Sections check their own keys. What features exclude is stated beside each in `asyncrl/conflicts/`; here all are asked:
by `section_problems` whenever a configuration is read, by `check_objective` once its import paths can be resolved. What
lies between several recipes of one run is in `asyncrl/conflicts/between.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.conflicts.protocol import Asked, Recipe
from asyncrl.conflicts.registry import FEATURES
from asyncrl.errors import ConfigError


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield the conflicts between keys of different sections."""
    for one in FEATURES:
        yield from one.sections(recipe)


def check_objective(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved `algo` section of a `Config`.

    Raises `ConfigError` for mistakes in it, and for what it needs and the rest of the recipe does not provide.
    """
    settings = resolve_settings(recipe.algo)
    asked = Asked(settings, needed(settings))
    for one in FEATURES:
        for problem in one.objective(recipe, asked):
            raise ConfigError(problem)
    return settings
