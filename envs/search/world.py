"""An invented world of people, towns, companies and books: its facts, and one document about each entity."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache

SYLLABLES = [a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "u", "ar", "en", "il", "or")]
KINDS = ("person", "town", "company", "book")
SENTENCES = {
    "birthplace": "{0} was born in {1}.",
    "employer": "{0} works for {1}.",
    "spouse": "{0} is married to {1}.",
    "mayor": "The mayor of {0} is {1}.",
    "twin town": "{0} is twinned with {1}.",
    "river": "{0} lies on the river {1}.",
    "founder": "{0} was founded by {1}.",
    "seat": "{0} has its seat in {1}.",
    "founding year": "The first office of {0} opened in {1}.",
    "author": "{0} was written by {1}.",
    "setting": "{0} is set in {1}.",
    "year of publication": "{0} was published in {1}.",
}
"""How a document states each relation of its subject."""
RELATIONS: dict[str, dict[str, str]] = {
    "person": {"birthplace": "town", "employer": "company", "spouse": "person"},
    "town": {"mayor": "person", "twin town": "town", "river": "name"},
    "company": {"founder": "person", "seat": "town", "founding year": "year"},
    "book": {"author": "person", "setting": "town", "year of publication": "year"},
}
"""Relations of each kind, and the kind they lead to; "name" and "year" have no document."""
FILLERS = [
    "Little is known about {0} before that.",
    "Letters that mention {0} are kept in an archive.",
    "{0} is the subject of a long dispute.",
    "A short film about {0} was never shown.",
]


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    text: str


@dataclass(slots=True)
class World:
    """Entities by name, their facts, and a document about each."""

    kinds: dict[str, str] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)
    """(entity, relation) to entity or value."""
    documents: list[Document] = field(default_factory=list)


@lru_cache(maxsize=4)
def make_world(seed: int, size: int) -> World:
    """Return a world of `size` entities, a quarter of each kind. Equal arguments give one world."""
    rng = random.Random(f"world/{seed}/{size}")
    world = World()
    members: dict[str, list[str]] = {kind: [] for kind in KINDS}
    # Few family names, so that a search for one also finds relatives.
    families = [_word(rng, 2) for _ in range(max(4, size // 12))]
    while len(world.kinds) < size:
        kind = KINDS[len(world.kinds) % len(KINDS)]
        name = _name(kind, rng, families)
        if name not in world.kinds:
            world.kinds[name] = kind
            members[kind].append(name)
    for name, kind in world.kinds.items():
        for relation, target in RELATIONS[kind].items():
            world.facts[name, relation] = _value(rng, target, members, name)
        world.documents.append(_document(rng, world, name))
    return world


def _word(rng: random.Random, syllables: int) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(syllables)).capitalize()


def _name(kind: str, rng: random.Random, families: list[str]) -> str:
    if kind == "person":
        return f"{_word(rng, 2)} {rng.choice(families)}"
    if kind == "company":
        return f"{_word(rng, 2)} {rng.choice(['Works', 'Trading', 'Glass', 'Rail'])}"
    if kind == "book":
        return f"The {rng.choice(['Last', 'Silent', 'Second', 'Broken'])} {_word(rng, 2)}"
    return _word(rng, 3)


def _value(rng: random.Random, target: str, members: dict[str, list[str]], subject: str) -> str:
    if target == "year":
        return str(rng.randint(1700, 1999))
    if target == "name":
        return _word(rng, 2)
    while (found := rng.choice(members[target])) == subject:
        continue
    return found


def _document(rng: random.Random, world: World, name: str) -> Document:
    sentences = [
        SENTENCES[relation].format(name, world.facts[name, relation])
        for relation in RELATIONS[world.kinds[name]]
    ]
    rng.shuffle(sentences)
    # The first sentence is what a search shows; it never states a fact.
    first = rng.choice(FILLERS).format(name)
    return Document(name, " ".join([first, *sentences]))
