"""What rows that ranks share rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield ranks that cannot share rows, and an objective that reads what each has a part of."""
    train = recipe.train
    if train.ranks % train.sequence_parallel:
        yield (
            f"train.sequence_parallel: must divide train.ranks={train.ranks}, got {train.sequence_parallel}"
        )
    if (count := train.sequence_parallel) > 1 and "score_norms" in asked.words:
        yield (
            "train.sequence_parallel: must be 1 where algo.advantage reads the norm of each trajectory's gradient, of "
            f"which each rank would have a part; got {count}"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield ranks that would share a row with images."""
    if recipe.train.sequence_parallel > 1:
        yield "train.sequence_parallel"


CONFLICTS = Conflicts(objective=objective_problems, with_images=with_images)
