"""What engines with rounded weights rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield adapters on rounded weights."""
    if recipe.engine.quantization != "off" and recipe.lora.rank:
        yield (
            "engine.quantization must be 'off' where lora.rank is above 0: adapters are trained on whole weights, got "
            f"{recipe.engine.quantization!r}"
        )


CONFLICTS = Conflicts(sections=section_problems)
