"""What a controlled staleness limit rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield bounds that exclude each other."""
    rule = asked.settings["staleness_control"]
    if not rule["enabled"]:
        return
    if rule["minimum"] > recipe.buffer.max_staleness:
        yield (
            f"algo.staleness_control.minimum: must be at most buffer.max_staleness={recipe.buffer.max_staleness}, "
            f"got {rule['minimum']}"
        )
    if rule["low_ess"] >= rule["high_ess"]:
        yield (
            f"algo.staleness_control.low_ess: must be below high_ess={rule['high_ess']:g}, got {rule['low_ess']:g}"
        )


CONFLICTS = Conflicts(objective=objective_problems)
