"""What a cache that is kept over versions rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what cannot go on from an older cache."""
    if recipe.engine.keep_kv and (recipe.lora.rank or recipe.train.schedule == "asynchronous"):
        yield (
            "engine.keep_kv must be false where lora.rank is above 0 or train.schedule is 'asynchronous': no request "
            "goes on under other weights there, got true"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield a cache whose images would be of older weights."""
    if recipe.engine.keep_kv:
        yield "engine.keep_kv"


CONFLICTS = Conflicts(sections=section_problems, with_images=with_images)
