"""What evaluations during training ask for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield evaluations without tasks, and of agents that no worker can start."""
    if recipe.eval.every and not recipe.eval.tasks:
        yield (f"eval.tasks must be above 0 for eval.every={recipe.eval.every}")
    if recipe.env.name == "agent" and recipe.env.config.get("offered") and recipe.eval.tasks:
        yield (
            "eval.tasks must be 0 with env.config.offered=true: agents elsewhere ask for training's episodes, and "
            f"evaluations are played by workers; got {recipe.eval.tasks}"
        )


CONFLICTS = Conflicts(sections=section_problems)
