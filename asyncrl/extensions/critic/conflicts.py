"""What a critic rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield steps of a critic that learns with the policy."""
    value = asked.settings["value"]
    if value["steps"] > 1 and value["trunk"] != "own":
        yield (
            f"algo.value.steps: must be 1 for algo.value.trunk={value['trunk']!r}, which learns with the "
            f"policy, got {value['steps']}"
        )


CONFLICTS = Conflicts(objective=objective_problems)
