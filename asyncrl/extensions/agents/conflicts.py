"""What episodes of agents rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield further policies, and evaluations of agents that no worker can start."""
    if recipe.env.name != "agent":
        return
    if recipe.policies:
        yield (
            "env.name must be left out where there are policies: an agent behind the gateway is played by one policy"
        )
    if recipe.env.config.get("offered") and recipe.eval.tasks:
        yield (
            "eval.tasks must be 0 with env.config.offered=true: agents elsewhere ask for training's episodes, and "
            f"evaluations are played by workers; got {recipe.eval.tasks}"
        )


CONFLICTS = Conflicts(sections=section_problems)
