"""What dropping groups without a signal rules out, and groups of one episode, which never have any."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.algo.settings import always_signal
from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield an objective that learns from groups whose episodes all earned the same, and one that learns nothing from
    groups of one episode."""
    part = always_signal(asked.settings)
    if recipe.rollout.group_size == 1 and not part:
        name = asked.settings["advantage"]["name"]
        yield (
            f"rollout.group_size: must be above 1 with algo.advantage.name={name!r}, which compares the episodes of a "
            "group and learns nothing from one alone, got 1; algo.preset='reinforce_pp' and 'ppo' take 1"
        )
    if recipe.buffer.drop_no_signal and part:
        yield (
            f"buffer.drop_no_signal: must be false, or left out, with {part}, which may learn from groups whose "
            "episodes all earned the same, got true"
        )


CONFLICTS = Conflicts(objective=objective_problems)
