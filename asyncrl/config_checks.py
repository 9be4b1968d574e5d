"""Every check across the sections of a configuration, made before anything starts. Imports no torch.

Sections check their own keys. What features exclude is stated beside each in `asyncrl/conflicts/`; here all are asked:
by `section_problems` and `policy_problems` whenever a configuration is read, by `check_objective` and
`check_policy_objectives` once its import paths can be resolved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.conflicts.protocol import Asked, ManyPolicies, Recipe
from asyncrl.conflicts.registry import FEATURES
from asyncrl.errors import ConfigError


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield the conflicts between keys of different sections."""
    for one in FEATURES:
        yield from one.sections(recipe)


def policy_problems(recipe: ManyPolicies) -> Iterator[str]:
    """Yield the conflicts between the recipe's own policy and further ones."""
    for one in FEATURES:
        yield from one.policies(recipe)


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


def check_policy_objectives(recipe: ManyPolicies) -> None:
    """Refuse objectives of further policies that do not go with the recipe's own. Raises `ConfigError`."""
    for one in FEATURES:
        for problem in one.policy_objectives(recipe):
            raise ConfigError(problem)
