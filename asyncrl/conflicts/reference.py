"""What a served reference rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config_sections import is_url
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield what a served model does not do."""
    if is_url(recipe.reference.path) and recipe.rollout.temperature != 1.0:
        yield (
            "reference.path: a served model scores at temperature 1; rollout.temperature must be 1, got "
            f"{recipe.rollout.temperature:g}"
        )
    if is_url(recipe.reference.path) and recipe.reference.refresh_every:
        yield "reference.refresh_every: a served reference cannot be refreshed; allowed: 0"


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield a server, which is sent no images."""
    if is_url(recipe.reference.path):
        yield "reference.path"


CONFLICTS = Conflicts(objective=objective_problems, with_images=with_images)
