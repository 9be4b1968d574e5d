"""What a trainer over several nodes asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.machines.settings import TrainerMachines


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield numbers of ranks and nodes that do not fit."""
    ranks, given = recipe.train.ranks, recipe.section(TrainerMachines)
    if ranks % given.nodes:
        yield f"train.ranks must be a multiple of train.nodes={given.nodes}, got {ranks}"
    if given.min_nodes > given.nodes:
        yield f"train.min_nodes must be at most train.nodes={given.nodes}, got {given.min_nodes}"


CONFLICTS = Conflicts(sections=section_problems)
