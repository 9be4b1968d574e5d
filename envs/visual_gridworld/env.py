"""Navigation by sight: the grid is a picture, and the text beside it is always the same.

A red disc is the player, a green square the goal; north is up. An action is one word, a direction. Reward 1 for
reaching the goal.
"""

from __future__ import annotations

from PIL import Image, ImageDraw

from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.images import png_part
from asyncrl.types import Message, Task

CELL = 16
"""Pixels a side: what the tiny vision model reads as one token."""
MAX_SIZE = 32
GROUND, LINE, PLAYER, GOAL = (235, 235, 235), (160, 160, 160), (200, 30, 30), (30, 150, 60)


class VisualGridworld(Gridworld):
    """`size` cells a side; `max_turns` moves. Start and goal follow from the task's seed."""

    def __init__(self, task: Task, size: int = 4, max_turns: int = 8) -> None:
        if size > MAX_SIZE:
            raise ValueError(f"size: must be from 2 to {MAX_SIZE}, got {size}")
        super().__init__(task, size, max_turns)

    def _observation(self) -> Message:
        return {"role": "user", "content": [{"type": "text", "text": "go"}, png_part(self.picture())]}

    def picture(self) -> Image.Image:
        """Return what the player sees."""
        side = self.size * CELL
        picture = Image.new("RGB", (side, side), GROUND)
        draw = ImageDraw.Draw(picture)
        for edge in range(0, side, CELL):
            draw.line((edge, 0, edge, side), LINE)
            draw.line((0, edge, side, edge), LINE)
        draw.rectangle(self._cell(self.goal_x, self.goal_y, 3), GOAL)
        draw.ellipse(self._cell(self.x, self.y, 4), PLAYER)
        return picture

    def _cell(self, x: int, y: int, margin: int) -> tuple[int, int, int, int]:
        left, top = x * CELL, (self.size - 1 - y) * CELL
        return left + margin, top + margin, left + CELL - margin, top + CELL - margin
