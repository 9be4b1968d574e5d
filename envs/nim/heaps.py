"""The game: heaps, moves, and who wins with perfect play."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

LETTERS = "abc"
MOVE = re.compile(r"([abc]) ?([1-9][0-9]?)")


@dataclass(frozen=True, slots=True)
class Heaps:
    """What is left of each heap; `most` things may be taken at once. Whoever takes the last one wins."""

    left: tuple[int, ...]
    most: int

    @property
    def text(self) -> str:
        return ", ".join(f"{letter} {left}" for letter, left in zip(LETTERS, self.left, strict=False))

    @property
    def empty(self) -> bool:
        return not any(self.left)

    def moves(self) -> list[tuple[int, int]]:
        """Return the legal moves: the heap's place, and how many are taken."""
        return [
            (place, take)
            for place, left in enumerate(self.left)
            for take in range(1, min(left, self.most) + 1)
        ]

    def after(self, move: tuple[int, int]) -> Heaps:
        place, take = move
        return Heaps((*self.left[:place], self.left[place] - take, *self.left[place + 1 :]), self.most)

    def won(self) -> bool:
        """True when the player to move wins with perfect play: the heaps' sizes modulo `most` + 1, as binary numbers,
        do not cancel out (Bouton 1901)."""
        rest = 0
        for left in self.left:
            rest ^= left % (self.most + 1)
        return rest != 0

    def best(self, rng: random.Random) -> tuple[int, int]:
        """Return a random one of the moves that keep a won game won, or any where there is none."""
        winning = [move for move in self.moves() if not self.after(move).won()]
        return rng.choice(winning or self.moves())

    def read(self, text: str) -> tuple[int, int] | None:
        """Return the move that a text names, None for anything but a legal one."""
        found = MOVE.fullmatch(text.strip())
        if found is None:
            return None
        move = LETTERS.index(found[1]), int(found[2])
        return move if move in self.moves() else None


def written(move: tuple[int, int]) -> str:
    """Return the text of a move."""
    place, take = move
    return f"{LETTERS[place]} {take}"


def make_heaps(level: int, rng: random.Random) -> Heaps:
    """Return heaps from which the first player wins with perfect play, as many heaps as the level."""
    while True:
        if level == 1:
            heaps = Heaps((rng.randint(5, 14),), 3)
        else:
            heaps = Heaps(tuple(rng.randint(1, 7) for _ in range(level)), 7)
        if heaps.won():
            return heaps
