"""Gridworld whose every move takes as long as a file says at that moment: the environment of `scaling.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task


class PacedGridworld(Gridworld):
    """pace: a file with the seconds that a move takes."""

    in_worker: ClassVar[bool] = True

    def __init__(self, task: Task, pace: str, **config: Any) -> None:
        super().__init__(task, **config)
        self.pace = Path(pace)

    async def step(self, action: Action) -> Step:  # type: ignore[override]
        await asyncio.sleep(float(self.pace.read_text()))
        return super().step(action)
