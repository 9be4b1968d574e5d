"""What groups that are trained again rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, older_groups
from asyncrl.extensions.replay.settings import ReplayConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a schedule without whole groups."""
    if recipe.section(ReplayConfig).replay_groups and recipe.train.schedule == "periodic":
        yield (
            "train.replay_groups must be 0 under train.schedule='periodic', which trains on groups as they arrive, got "
            f"{recipe.section(ReplayConfig).replay_groups}"
        )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective to which a version long ago means nothing."""
    yield from older_groups(asked, "train.replay_groups", recipe.section(ReplayConfig).replay_groups, "0")


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
