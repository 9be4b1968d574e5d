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


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield activations of a vision model, which are not offloaded."""
    if recipe.train.offload_activations:
        yield "train.offload_activations"


CONFLICTS = Conflicts(objective=objective_problems, with_images=with_images)
