"""What batch-invariant kernels rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe
from asyncrl.extensions.batch_invariance.settings import BatchInvarianceConfig


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a group of trainer and engines of which one side alone has NCCL's settings of batch invariance."""
    invariant = recipe.section(BatchInvarianceConfig).batch_invariant
    if invariant and recipe.engine.weight_transfer == "collective":
        yield (
            "engine.batch_invariant: sets NCCL's algorithm in the engines alone, and "
            "engine.weight_transfer='collective' is a group of theirs with the trainer; use 'shared_file' or 'http'"
        )


CONFLICTS = Conflicts(objective=objective_problems)
