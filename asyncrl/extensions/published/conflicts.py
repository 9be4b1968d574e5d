"""What the norm of each trajectory's gradient asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield gradients that ranks divide."""
    if "score_norms" in asked.words and recipe.train.zero_stage == 3:
        yield (
            f"train.zero_stage: algo.advantage={asked.settings['advantage']} reads the norm of each trajectory's "
            "gradient, which needs train.zero_stage below 3, got 3"
        )


CONFLICTS = Conflicts(objective=objective_problems)
