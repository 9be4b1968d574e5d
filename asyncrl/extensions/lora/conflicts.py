"""What adapters rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield adapters: all weights of a vision model are trained."""
    if recipe.lora.rank:
        yield "lora.rank"


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield what nobody has run with it."""
    if recipe.lora.rank and recipe.engine.pipeline_parallel > 1:
        yield "lora.rank with engine.pipeline_parallel"


CONFLICTS = Conflicts(with_images=with_images, untried=untried)
