"""Find a secret code of digits from how many are right and how many misplaced."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from functools import lru_cache

from asyncrl.envs.textgame.game import Reply, level_value


class Mastermind:
    """Digits may repeat. Levels: 2 of 4 digits, 3 of 4, 4 of 5."""

    def __init__(self, seed: int, level: int) -> None:
        self.length = level_value(level, (2, 3, 4))
        self.digits = level_value(level, (4, 4, 5))
        self.max_turns = level_value(level, (7, 8, 9))
        rng = random.Random(f"mastermind/{seed}")
        self.secret = tuple(rng.randrange(1, self.digits + 1) for _ in range(self.length))
        self.key = f"{self.digits} {self.secret}"
        self.rules = (
            f"Find the code of {self.length} digits from 1 to {self.digits}. "
            "Answer with a guess, for example " + "1" * self.length + "."
        )
        self.candidates = _codes(self.length, self.digits)

    def look(self) -> str:
        return f"{self.max_turns} guesses"

    def play(self, command: str) -> Reply:
        guess = tuple(int(c) for c in command if c.isascii() and c.isdigit())
        if len(guess) != self.length or not all(1 <= d <= self.digits for d in guess):
            return Reply("not a code", valid=False)
        right, misplaced = compare(self.secret, guess)
        self.candidates = [c for c in self.candidates if compare(c, guess) == (right, misplaced)]
        if right == self.length:
            return Reply("found", over=True, won=True)
        return Reply(f"{right} right {misplaced} misplaced")

    def expert(self) -> str:
        return "".join(map(str, self.candidates[0]))

    def guess(self, rng: random.Random) -> str:
        return "".join(str(rng.randrange(1, self.digits + 1)) for _ in range(self.length))


def compare(secret: tuple[int, ...], guess: tuple[int, ...]) -> tuple[int, int]:
    """Digits at the right place, and further digits that occur elsewhere."""
    right = sum(a == b for a, b in zip(secret, guess, strict=True))
    common = sum((Counter(secret) & Counter(guess)).values())
    return right, common - right


@lru_cache(maxsize=8)
def _all_codes(length: int, digits: int) -> tuple[tuple[int, ...], ...]:
    return tuple(itertools.product(range(1, digits + 1), repeat=length))


def _codes(length: int, digits: int) -> list[tuple[int, ...]]:
    return list(_all_codes(length, digits))
