"""What dropping groups without a signal rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.algo.settings import always_signal
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective that learns from such groups."""
    if recipe.buffer.drop_no_signal and (part := always_signal(asked.settings)):
        yield (
            f"buffer.drop_no_signal: must be false, or left out, with {part}, which may learn from groups whose "
            "episodes all earned the same, got true"
        )


CONFLICTS = Conflicts(objective=objective_problems)
