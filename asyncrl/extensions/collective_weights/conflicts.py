"""What weights over a group rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.conflicts.weight_transfer import listed, weight_transfers

NAME = "collective"


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield adapters, which vLLM reads from files."""
    if recipe.lora.rank and recipe.engine.weight_transfer == NAME:
        files = tuple(name for name in weight_transfers() if name != NAME)
        yield (
            f"engine.weight_transfer must be {listed(files)} where lora.rank is above 0: vLLM reads adapters from "
            f"files, got {NAME!r}"
        )


CONFLICTS = Conflicts(sections=section_problems)
