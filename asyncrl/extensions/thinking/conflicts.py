"""What bounded thinking rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.thinking.settings import ThinkingConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield bounds that exclude each other, and episodes whose turns are sampled elsewhere."""
    given = recipe.section(ThinkingConfig)
    if not given.bounds_thinking:
        return
    most, least = given.most_thinking, given.least_thinking
    if most is not None and least is not None and least > most:
        yield f"eval.least_thinking: must be at most eval.most_thinking={most}, got {least}"
    if most is not None and most >= recipe.rollout.max_tokens_per_turn:
        yield (
            f"eval.most_thinking: must be below rollout.max_tokens_per_turn={recipe.rollout.max_tokens_per_turn}, so "
            f"that there is room for an answer, got {most}"
        )
    if recipe.env.name == "agent":
        yield "eval.most_thinking and eval.least_thinking must be left out for env.name='agent', whose agent samples"


CONFLICTS = Conflicts(sections=section_problems)
