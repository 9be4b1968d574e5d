"""Stores that hold different things, and a question about all of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

NAMES = ("north", "south", "east", "west", "harbor", "hill", "lake", "mill")
THINGS = ("apples", "pears", "plums", "figs", "dates", "limes")
MOST = {1: 9, 2: 9, 3: 40}


@dataclass(frozen=True, slots=True)
class Question:
    stores: Mapping[str, Mapping[str, int]]
    """What each store holds."""
    thing: str

    @property
    def text(self) -> str:
        names = " and ".join(self.stores)
        return f"How many {self.thing} are in {names}{' together' if len(self.stores) > 1 else ''}?"

    @property
    def answer(self) -> int:
        return sum(held[self.thing] for held in self.stores.values())

    @property
    def key(self) -> str:
        return f"{self.text} {[sorted(held.items()) for held in self.stores.values()]}"


def make_question(level: int, rng: random.Random) -> Question:
    """Return a question about 1, 2 or 3 stores."""
    things = THINGS[: 2 + level]
    stores = {
        name: {thing: rng.randint(0, MOST[level]) for thing in things} for name in rng.sample(NAMES, level)
    }
    return Question(stores, rng.choice(things))
