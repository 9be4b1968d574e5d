"""What a reward for a short critical path rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.critical_path.settings import CriticalPathConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a reward for what is not measured, and one in which nothing is paid."""
    given = recipe.section(CriticalPathConfig)
    if given.factor and not given.measured:
        yield f"critical_path.factor: needs critical_path.measured=true, got {given.factor:g} without it"
    if given.most != CriticalPathConfig().most and not given.factor:
        yield f"critical_path.most: is not read with critical_path.factor=0, got {given.most:g}"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a baseline that would compare threads with episodes."""
    given, unit = recipe.section(CriticalPathConfig), asked.settings["baseline_unit"]
    if given.factor and unit != "episodes":
        yield (
            f"algo.baseline_unit must be 'episodes' with critical_path.factor={given.factor:g}, got {unit!r}: an "
            "episode of many threads would outweigh one of none"
        )


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
