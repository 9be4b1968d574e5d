"""What adapters rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.conflicts.weight_transfer import listed, weight_transfers


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a transport that brings no adapters."""
    if recipe.lora.rank and recipe.engine.weight_transfer == "collective":
        files = tuple(name for name in weight_transfers() if name != "collective")
        yield (
            f"engine.weight_transfer must be {listed(files)} where lora.rank is above 0: vLLM reads adapters from "
            "files, got 'collective'"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield adapters: all weights of a vision model are trained."""
    if recipe.lora.rank:
        yield "lora.rank"


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield what nobody has run with it."""
    if recipe.lora.rank and recipe.engine.pipeline_parallel > 1:
        yield "lora.rank with engine.pipeline_parallel"


CONFLICTS = Conflicts(sections=section_problems, with_images=with_images, untried=untried)
