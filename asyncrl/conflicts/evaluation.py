"""What evaluations during training ask for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield evaluations without tasks."""
    if recipe.eval.every and not recipe.eval.tasks:
        yield (f"eval.tasks must be above 0 for eval.every={recipe.eval.every}")


CONFLICTS = Conflicts(sections=section_problems)
