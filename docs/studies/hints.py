"""Gridworld whose training tasks come with an expert's moves: the environment of hints.toml."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task


class HintedGridworld(Gridworld):
    """Gridworld. `task.data["hint"]` has the moves of a shortest way, one a turn; held-out tasks have none."""

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """See `Env.tasks`."""
        for task in super().tasks(split, env, **config):
            yield (
                replace(task, data={"hint": cls(task, **config).shortest_way()}) if split == "train" else task
            )

    def shortest_way(self) -> list[str]:
        """Return the moves that the scripted expert makes from the start."""
        north, east = self.goal_y - self.y, self.goal_x - self.x
        vertical, horizontal = "north" if north > 0 else "south", "east" if east > 0 else "west"
        return [vertical] * abs(north) + [horizontal] * abs(east)
