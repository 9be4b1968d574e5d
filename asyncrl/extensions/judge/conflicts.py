"""What a judge rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.judge.settings import JudgeConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a judge beside an agent."""
    url = recipe.section(JudgeConfig).url
    if url and recipe.env.name == "agent":
        yield (
            "judge.url must be left out for env.name='agent', whose agent reports its own reward, got "
            f"{url!r}"
        )


CONFLICTS = Conflicts(sections=section_problems)
