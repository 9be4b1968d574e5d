"""What a verifier rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.table import value_at


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield rewards that would be the verifier's, too, or would be taken for it."""
    if recipe.env.name != "verified":
        return
    if value_at(recipe, "judge.active"):
        yield "judge with env.name='verified'"
    for key in ("majority.mode", "length.mode"):
        if value_at(recipe, key) != "off":
            yield f"{key} with env.name='verified'"


CONFLICTS = Conflicts(untried=untried)
