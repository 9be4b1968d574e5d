"""What engines with rounded weights rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe
from asyncrl.extensions.quantization.settings import QuantizationConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield adapters on rounded weights."""
    scheme = recipe.section(QuantizationConfig).quantization
    if scheme != "off" and recipe.lora.rank:
        yield (
            "engine.quantization must be 'off' where lora.rank is above 0: adapters are trained on whole weights, got "
            f"{scheme!r}"
        )


def with_images(recipe: Recipe) -> Iterator[str]:
    """Yield rounding, which the layers of a vision model are spared."""
    if recipe.section(QuantizationConfig).quantization != "off":
        yield "engine.quantization"


CONFLICTS = Conflicts(sections=section_problems, with_images=with_images)
