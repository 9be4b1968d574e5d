"""What processes that are added and retired rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps processes from being added and retired."""
    start = {
        "rollout": ("rollout.workers", recipe.rollout.workers),
        "env": ("env.services", recipe.env.services),
        "engine": ("engine.count", recipe.engine.count),
    }
    for role, (least, most) in recipe.numbers.items():
        key, count = start[role]
        if count != "auto" and not least <= count <= most:
            yield f"{key} must be within scale.{role}=[{least}, {most}], got {count}"
    if recipe.numbers and recipe.policies:
        role = next(iter(recipe.numbers))
        yield f"scale.{role} must be left out where there are further policies, got {list(recipe.numbers[role])}"
    if "engine" in recipe.numbers and recipe.placement.sleep is True:
        yield (
            "scale.engine must be left out for placement.sleep=true, where engines and trainer use the memory by "
            f"turns, got {list(recipe.numbers['engine'])}"
        )


CONFLICTS = Conflicts(sections=section_problems)
