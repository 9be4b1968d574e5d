"""What an outer optimizer rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.outer.settings import OuterConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield further policies."""
    url = recipe.section(OuterConfig).url
    if url and recipe.policies:
        yield f"outer.url must be left out where there are further policies, got {url!r}"


CONFLICTS = Conflicts(sections=section_problems)
