"""What engines that sleep while the trainer works rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from sleeping while the trainer works."""
    if recipe.placement.sleep is not True:
        return
    if recipe.train.schedule != "synchronous":
        yield (
            "placement.sleep must be false or 'auto' under train.schedule="
            f"{recipe.train.schedule!r}, where engines sample while the trainer works; 'synchronous' allows it"
        )
    if recipe.engine.weight_transfer != "shared_file":
        yield (
            "placement.sleep: engine.weight_transfer must be 'shared_file', which needs no memory of both sides at "
            f"once, got {recipe.engine.weight_transfer!r}"
        )
    if recipe.policies:
        yield "placement.sleep must be false or 'auto' where there are policies: their trainers work at any time"


CONFLICTS = Conflicts(sections=section_problems)
