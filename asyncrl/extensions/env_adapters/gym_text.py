"""Observations of Gymnasium environments as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

OBJECTS = {4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
WALL = 2
HIGHLIGHT = re.compile(r"\x1b\[\d*(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)

TextOf = Callable[[Any, Any], str]
"""A function from the environment and its observation to the text for the model."""


def minigrid_text(env: Any, observation: Any) -> str:
    """Describe the mission, the objects in view and the distance of the walls, as seen by the agent.

    The view is MiniGrid's egocentric one, [columns, rows, 3], the agent in the middle of the last row.
    """
    image = observation["image"]
    columns, rows = image.shape[:2]
    middle, last = columns // 2, rows - 1
    lines = [str(observation["mission"])]
    for j in range(last, -1, -1):
        for i in range(columns):
            kind, colour, state = (int(x) for x in image[i, j])
            if kind in OBJECTS:
                name = _object(kind, colour, state)
                here = (i, j) == (middle, last)
                lines.append(f"you carry a {name}" if here else f"{name}: {_place(i - middle, last - j)}")
    ways = {
        "ahead": [image[middle, j, 0] for j in range(last - 1, -1, -1)],
        "left": [image[i, last, 0] for i in range(middle - 1, -1, -1)],
        "right": [image[i, last, 0] for i in range(middle + 1, columns)],
    }
    for way, cells in ways.items():
        kinds = [int(cell) for cell in cells]
        if WALL in kinds:
            lines.append(f"wall: {kinds.index(WALL) + 1} {way}")
    return "\n".join(lines)


def ansi_text(env: Any, observation: Any) -> str:
    """Return the environment's own text rendering, with highlighted parts in brackets."""
    return HIGHLIGHT.sub(r"[\1]", str(env.render())).strip()


def plain_text(env: Any, observation: Any) -> str:
    """Return the observation as Python prints it."""
    return str(observation)


def _object(kind: int, colour: int, state: int) -> str:
    words = [COLOURS[colour], OBJECTS[kind]]
    if OBJECTS[kind] == "door":
        words.insert(0, DOOR_STATES[state])
    return " ".join(words)


def _place(right: int, ahead: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return ", ".join(parts)
