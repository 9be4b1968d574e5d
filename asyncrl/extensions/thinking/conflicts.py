"""What bounded thinking rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.table import rows
from asyncrl.extensions.thinking.settings import ThinkingConfig, TrainedThinkingConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield bounds that exclude each other, and episodes whose turns are sampled elsewhere."""
    given, trained = recipe.section(ThinkingConfig), recipe.section(TrainedThinkingConfig)
    most, least = given.most_thinking, given.least_thinking
    if most is not None and least is not None and least > most:
        yield f"eval.least_thinking: must be at most eval.most_thinking={most}, got {least}"
    for key, bound in (("eval.most_thinking", most), ("rollout.most_thinking", trained.most_thinking)):
        if bound is not None and bound >= recipe.rollout.max_tokens_per_turn:
            yield (
                f"{key}: must be below rollout.max_tokens_per_turn={recipe.rollout.max_tokens_per_turn}, so that there "
                f"is room for an answer, got {bound}"
            )
    if recipe.env.name == "agent":
        if given.bounds_thinking:
            yield (
                "eval.most_thinking and eval.least_thinking must be left out for env.name='agent', whose agent samples"
            )
        if trained.bounds_thinking:
            yield "rollout.most_thinking must be left out for env.name='agent', whose agent samples"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield what engines report of whole turns, which are sampled in pieces here."""
    if recipe.section(TrainedThinkingConfig).bounds_thinking:
        for row in rows("token_extras"):
            if row.asked and row.wanted(recipe):
                yield f"rollout.most_thinking must be left out with {', '.join(row.asked)}: turns are sampled in pieces"


def untried(recipe: Recipe) -> Iterator[str]:
    """Yield further policies."""
    if recipe.section(TrainedThinkingConfig).bounds_thinking and recipe.policies:
        yield "rollout.most_thinking with policies"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems, untried=untried)
