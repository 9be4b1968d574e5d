"""What the tiny base model rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong of rows beside the tiny base model."""
    if recipe.model.path == "sft" and recipe.sft.data:
        yield (
            "sft.data: must be left out for model.path='sft', which makes a tiny base model of scripted episodes; name "
            f"the model that is to learn from rows, got {recipe.sft.data!r}"
        )


CONFLICTS = Conflicts(sections=section_problems)
