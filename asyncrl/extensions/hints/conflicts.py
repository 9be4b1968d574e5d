"""What hints of a group rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, episodes_of_group
from asyncrl.extensions.hints.settings import HintsConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield further policies."""
    if recipe.policies and recipe.section(HintsConfig).hinted:
        yield "rollout.hinted must be left out where there are policies: hints are for one policy"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield hints that a group cannot hold."""
    yield from episodes_of_group(recipe, "rollout.hinted", recipe.section(HintsConfig).hinted)


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
