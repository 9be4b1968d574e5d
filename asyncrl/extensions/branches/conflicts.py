"""What branches and hints of a group rule out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield branches and hints that a group cannot hold."""
    rollout = recipe.rollout
    for name in ("branches", "hinted"):
        count = getattr(rollout, name)
        if count >= rollout.group_size and count:
            yield (f"rollout.{name}: must be below rollout.group_size={rollout.group_size}, got {count}")
        if count and recipe.env.name == "agent":
            yield f"rollout.{name}: must be 0 with env.name='agent', which plays its own turns"
    if "branches" in asked.words and not rollout.branches:
        name = asked.settings["advantage"]["name"]
        yield f"rollout.branches: must be above 0 for algo.advantage.name={name!r}, got 0"


CONFLICTS = Conflicts(objective=objective_problems)
