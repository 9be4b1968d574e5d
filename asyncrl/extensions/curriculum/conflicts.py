"""The run's curriculum, and what it rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.errors import ConfigError
from asyncrl.extensions.curriculum.curricula import FILE_ORDER, Factory, factory
from asyncrl.extensions.curriculum.settings import CurriculumConfig


def check_curriculum(recipe: Recipe) -> Factory | None:
    """Return what makes the run's curriculum of its tasks; None where tasks come in their own order.

    Raises `ConfigError` for an unknown curriculum and for wrong settings.
    """
    chosen = recipe.section(CurriculumConfig)
    return factory(
        chosen.name, chosen.settings, recipe.rollout.group_size, recipe.run.seed, chosen.turn_slack
    )


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a curriculum from choosing tasks, limiting episodes, and showing solved tasks in prompts."""
    if recipe.policies and recipe.section(CurriculumConfig).name != FILE_ORDER:
        yield (
            "curriculum.name must be left out where there are policies: a curriculum may choose the number of "
            "episodes, and slots of other policies have rollout.group_size"
        )
    yield from _turn_slack(recipe)
    yield from _seeding(recipe)


def _turn_slack(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps episodes from being limited by earlier successes at their task."""
    given = recipe.section(CurriculumConfig)
    slack = given.turn_slack
    if not slack:
        return
    if slack < 1:
        yield f"curriculum.turn_slack must be 0 or at least 1, got {slack:g}"
    if given.name == FILE_ORDER:
        yield f"curriculum.turn_slack must be 0 with curriculum.name={FILE_ORDER!r}, which plays each task once"
    if recipe.env.name == "agent":
        yield "curriculum.turn_slack must be 0 with env.name='agent', which plays its own turns"


def _seeding(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a curriculum from showing solved tasks in the prompts of others."""
    chosen = recipe.section(CurriculumConfig)
    if chosen.name == "xrpo" and chosen.settings.get("seeds") and recipe.env.name == "agent":
        yield "curriculum.settings.seeds must be 0 with env.name='agent', which writes its own prompts"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an unknown curriculum, and wrong settings."""
    try:
        check_curriculum(recipe)
    except ConfigError as error:
        yield str(error)


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
