"""What a budget of tokens a step rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a limit of groups in flight that leaves no step whole."""
    most = recipe.buffer.max_staleness * recipe.buffer.groups_per_step
    if recipe.buffer.token_budget and recipe.slots == most + recipe.buffer.groups_per_step:
        yield (
            f"buffer.over_provision must be below max_staleness * groups_per_step = {most} for a token_budget: "
            "with that many groups in flight the staleness limit leaves no step without all of its groups, got "
            f"{recipe.buffer.over_provision}"
        )


CONFLICTS = Conflicts(sections=section_problems)
