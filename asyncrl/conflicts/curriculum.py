"""The run's curriculum, and what it rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.algo.curation.curricula import FILE_ORDER, Factory, factory
from asyncrl.conflicts.protocol import Conflicts, Recipe


def check_curriculum(recipe: Recipe) -> Factory | None:
    """Return what makes the run's curriculum of its tasks; None where tasks come in their own order.

    Raises `ConfigError` for an unknown curriculum and for wrong settings.
    """
    chosen = recipe.curriculum
    return factory(
        chosen.name, chosen.settings, recipe.rollout.group_size, recipe.run.seed, chosen.turn_slack
    )


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a curriculum from limiting episodes, and from showing solved tasks in others' prompts."""
    yield from _turn_slack(recipe)
    yield from _seeding(recipe)


def _turn_slack(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps episodes from being limited by earlier successes at their task."""
    slack = recipe.curriculum.turn_slack
    if not slack:
        return
    if slack < 1:
        yield f"curriculum.turn_slack must be 0 or at least 1, got {slack:g}"
    if recipe.curriculum.name == FILE_ORDER:
        yield f"curriculum.turn_slack must be 0 with curriculum.name={FILE_ORDER!r}, which plays each task once"
    if recipe.env.name == "agent":
        yield "curriculum.turn_slack must be 0 with env.name='agent', which plays its own turns"


def _seeding(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a curriculum from showing solved tasks in the prompts of others."""
    chosen = recipe.curriculum
    if chosen.name == "xrpo" and chosen.settings.get("seeds") and recipe.env.name == "agent":
        yield "curriculum.settings.seeds must be 0 with env.name='agent', which writes its own prompts"


CONFLICTS = Conflicts(sections=section_problems)
