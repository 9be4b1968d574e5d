"""The interface of the text games in this folder: a command in, a line of text out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reply:
    """The game's answer to one command."""

    text: str
    over: bool = False
    won: bool = False
    valid: bool = True
    """False for a command the game does not know or allow; it costs the turn."""


class Game(Protocol):
    """One seeded game."""

    rules: str
    max_turns: int
    key: str
    """Equal for equal games."""

    def look(self) -> str:
        """The text before the first command."""

    def play(self, command: str) -> Reply:
        """Take one command, in lower case with single spaces."""

    def expert(self) -> str:
        """The next command of a player that always wins."""

    def guess(self, rng: random.Random) -> str:
        """A random command that is allowed now."""


def level_value(level: int, values: tuple[int, int, int]) -> int:
    """The value of level 1, 2 or 3. Raises `ValueError` for another."""
    if level not in (1, 2, 3):
        raise ValueError(f"level: must be 1, 2 or 3, got {level!r}")
    return values[level - 1]
