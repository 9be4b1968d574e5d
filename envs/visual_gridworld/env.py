"""Navigation by sight: the grid is a picture, and the text beside it is always the same.

A red disc is the player, a green square the goal; north is up. An action is one word, a direction. Reward 1 for
reaching the goal. `shown` replaces the picture by one that says nothing: whoever still succeeds does not look.
"""

from __future__ import annotations

from random import Random

from PIL import Image, ImageDraw

from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.images import png_part
from asyncrl.types import Message, Task

CELL = 8
"""Pixels a side: what the tiny vision model reads as one patch; four of them are one token."""
MAX_SIZE = 32
GROUND, LINE, PLAYER, GOAL = (235, 235, 235), (160, 160, 160), (200, 30, 30), (30, 150, 60)
SHOWN = ("grid", "blank", "other")


class VisualGridworld(Gridworld):
    """`size` cells a side; `max_turns` moves. Start and goal follow from the task's seed.

    shown: what the player sees: the grid, the grid without player and goal ("blank"), or a grid with both in places
    drawn at random at every turn ("other").
    """

    def __init__(self, task: Task, size: int = 4, max_turns: int = 8, shown: str = "grid") -> None:
        if size > MAX_SIZE:
            raise ValueError(f"size: must be from 2 to {MAX_SIZE}, got {size}")
        if shown not in SHOWN:
            raise ValueError(f"shown: must be one of {', '.join(SHOWN)}, got {shown!r}")
        super().__init__(task, size, max_turns)
        self.shown = shown
        self._places = Random(f"other/{task.seed}")

    def _observation(self) -> Message:
        return {"role": "user", "content": [{"type": "text", "text": "go"}, png_part(self.picture())]}

    def picture(self) -> Image.Image:
        """Return what the player sees."""
        player, goal = (self.x, self.y), (self.goal_x, self.goal_y)
        if self.shown == "other":
            cells = self._places.sample(range(self.size**2), 2)
            player, goal = (divmod(cell, self.size) for cell in cells)
        side = self.size * CELL
        picture = Image.new("RGB", (side, side), GROUND)
        draw = ImageDraw.Draw(picture)
        for edge in range(0, side, CELL):
            draw.line((edge, 0, edge, side), LINE)
            draw.line((0, edge, side, edge), LINE)
        if self.shown != "blank":
            draw.rectangle(self._cell(*goal, 1), GOAL)
            draw.ellipse(self._cell(*player, 2), PLAYER)
        return picture

    def _cell(self, x: int, y: int, margin: int) -> tuple[int, int, int, int]:
        left, top = x * CELL, (self.size - 1 - y) * CELL
        return left + margin, top + margin, left + CELL - margin, top + CELL - margin
