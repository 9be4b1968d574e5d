"""Twenty questions: find the thing by asking about its traits."""

from __future__ import annotations

import random

from asyncrl.envs.textgame.game import Reply, level_value

TRAITS: dict[str, str] = {
    "alive": "cat dog eagle trout bee oak rose whale penguin ant",
    "animal": "cat dog eagle trout bee whale penguin ant",
    "flying": "eagle bee kite plane balloon",
    "swimming": "trout whale penguin ship canoe",
    "edible": "trout apple bread cheese carrot",
    "bigger than a person": "oak whale plane ship house car balloon",
    "made of metal": "car plane ship spoon bell nail",
    "made of wood": "oak canoe table house",
    "a vehicle": "car plane ship canoe balloon",
    "found in a kitchen": "spoon table apple bread cheese carrot cat",
    "tame": "cat dog",
    "sweet": "apple",
    "a plant": "oak rose apple carrot",
    "black": "ant penguin",
    "loud": "dog bell car plane",
    "made of milk": "cheese",
    "long and thin": "spoon nail canoe carrot",
    "with feathers": "eagle penguin",
}
"""Possible questions, and the things they are true of."""

THINGS = sorted({thing for things in TRAITS.values() for thing in things.split()})
TRUE_OF = {trait: frozenset(things.split()) for trait, things in TRAITS.items()}


class TwentyQuestions:
    """Levels: one of 6, 12 or all things. A wrong guess costs a turn like a question."""

    def __init__(self, seed: int, level: int) -> None:
        rng = random.Random(f"twenty/{seed}")
        count = level_value(level, (6, 12, len(THINGS)))
        self.things = sorted(rng.sample(THINGS, count))
        self.secret = rng.choice(self.things)
        self.max_turns = level_value(level, (5, 8, 10))
        self.key = f"{self.secret} of {self.things}"
        self.candidates = list(self.things)
        self.rules = (
            "I think of one of: "
            + ", ".join(self.things)
            + '. Ask "is it TRAIT?" or name the thing. Traits: '
            + ", ".join(TRAITS)
            + "."
        )

    def look(self) -> str:
        return f"{self.max_turns} turns"

    def play(self, command: str) -> Reply:
        text = command.strip(" ?.!")
        if text in self.things:
            self.candidates = [c for c in self.candidates if c != text]
            return Reply("found", over=True, won=True) if text == self.secret else Reply("no")
        trait = text.removeprefix("is it ")
        if trait not in TRUE_OF:
            return Reply("ask about a trait or name a thing", valid=False)
        yes = self.secret in TRUE_OF[trait]
        self.candidates = [c for c in self.candidates if (c in TRUE_OF[trait]) == yes]
        return Reply("yes" if yes else "no")

    def expert(self) -> str:
        best = max(TRUE_OF, key=lambda trait: self._even(trait))
        if len(self.candidates) <= 2 or not self._even(best):
            return self.candidates[0]
        return f"is it {best}?"

    def guess(self, rng: random.Random) -> str:
        return rng.choice([f"is it {rng.choice(list(TRAITS))}?", rng.choice(self.things)])

    def _even(self, trait: str) -> int:
        """Return how many candidates the worse answer rules out."""
        yes = sum(thing in TRUE_OF[trait] for thing in self.candidates)
        return min(yes, len(self.candidates) - yes)
