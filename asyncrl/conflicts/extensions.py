"""What extensions of other packages ask for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.installed import TRAINER_CALLBACKS, extension_problems


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield extensions that are not installed, and settings that they do not take."""
    yield from extension_problems(TRAINER_CALLBACKS, recipe.extensions.trainer_callbacks)


CONFLICTS = Conflicts(objective=objective_problems)
