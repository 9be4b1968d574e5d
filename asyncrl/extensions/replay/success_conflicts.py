"""What groups that earlier successes complete rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, older_groups
from asyncrl.extensions.replay.settings import ReplayConfig
from asyncrl.extensions.table import value_at


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps groups from being completed by earlier successes."""
    if not recipe.section(ReplayConfig).complete_groups:
        return
    for wrong, why in (
        (
            recipe.train.schedule == "periodic",
            "train.schedule='periodic', which trains on groups as they arrive",
        ),
        (
            value_at(recipe, "curriculum.name") == "file_order",
            "curriculum.name='file_order', which plays each task once",
        ),
    ):
        if wrong:
            yield f"train.complete_groups must be false with {why}"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective to which a version long ago means nothing."""
    yield from older_groups(
        asked, "train.complete_groups", recipe.section(ReplayConfig).complete_groups, "false"
    )


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
