"""What a trainer over several nodes asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield numbers of ranks and nodes that do not fit."""
    if recipe.train.ranks % recipe.train.nodes:
        yield f"train.ranks must be a multiple of train.nodes={recipe.train.nodes}, got {recipe.train.ranks}"
    if recipe.train.min_nodes > recipe.train.nodes:
        yield f"train.min_nodes must be at most train.nodes={recipe.train.nodes}, got {recipe.train.min_nodes}"


CONFLICTS = Conflicts(sections=section_problems)
