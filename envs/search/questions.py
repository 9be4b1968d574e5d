"""Questions that lead from a named entity to the answer by one to three facts."""

from __future__ import annotations

import random
from dataclasses import dataclass

from asyncrl.envs.search.world import RELATIONS, World


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answers: tuple[str, ...]
    """Each of them is right."""
    path: tuple[tuple[str, str], ...] = ()
    """(entity, relation) of each hop; empty for a question from outside."""


def make_question(world: World, hops: int, rng: random.Random) -> Question:
    """Return a question that needs `hops` documents, none of them twice."""
    names = list(world.kinds)
    while True:
        entity = rng.choice(names)
        path: list[tuple[str, str]] = []
        phrase, seen = entity, {entity}
        for hop in range(hops):
            further = hop < hops - 1
            kind = world.kinds[entity]
            # Only relations to an entity with its own document can be followed.
            allowed = [r for r, target in RELATIONS[kind].items() if not further or target in RELATIONS]
            relation = rng.choice(allowed)
            path.append((entity, relation))
            phrase = f"the {relation} of {phrase}"
            entity = world.facts[entity, relation]
            if entity in seen:
                break
            seen.add(entity)
        else:
            return Question(f"What is {phrase}?", (entity,), tuple(path))
