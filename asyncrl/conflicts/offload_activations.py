"""What offloading activations asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield activations to offload that are not kept."""
    if recipe.train.offload_activations and not recipe.train.gradient_checkpointing:
        yield (
            "train.offload_activations: moves what train.gradient_checkpointing keeps, which must be true with it"
        )


CONFLICTS = Conflicts(objective=objective_problems)
