"""What branches of a group rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, episodes_of_group
from asyncrl.extensions.branches.settings import BranchesConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield further policies."""
    if recipe.policies and recipe.section(BranchesConfig).branches:
        yield "rollout.branches must be left out where there are policies: branches follow one policy"


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield branches that a group cannot hold, and an objective that reads branches without any."""
    count = recipe.section(BranchesConfig).branches
    yield from episodes_of_group(recipe, "rollout.branches", count)
    if "branches" in asked.words and not count:
        name = asked.settings["advantage"]["name"]
        yield f"rollout.branches: must be above 0 for algo.advantage.name={name!r}, got 0"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
