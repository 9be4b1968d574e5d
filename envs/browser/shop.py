"""A generated shop: its goods, the customer's order, and what has been ordered."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

KINDS = ("lamp", "chair", "mug", "rug", "clock")
COLOURS = ("red", "green", "blue", "white")
MAKERS = ("Arno", "Bela", "Corvo", "Dask", "Elmo", "Finn", "Gora", "Halm")
PEOPLE = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Fay", "Gus", "Ida")
MOST = 5
"""The most pieces of one article in one order."""


@dataclass(frozen=True, slots=True)
class Article:
    id: int
    maker: str
    kind: str
    colour: str
    price: int

    @property
    def name(self) -> str:
        return f"{self.maker} {self.kind}"


@dataclass(frozen=True, slots=True)
class Order:
    article: int
    count: int = 1
    person: str = ""
    coupon: str = ""


@dataclass(slots=True)
class Shop:
    """One customer's shop. Only the first order counts."""

    level: int
    articles: tuple[Article, ...]
    goal: str
    wanted: Order
    coupon: str
    orders: list[Order] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.goal} {self.articles}"

    def kinds(self) -> list[str]:
        return sorted({a.kind for a in self.articles})

    def find(self, text: str) -> list[Article]:
        """Return the articles whose name contains all words of the text."""
        words = text.lower().split()
        return [a for a in self.articles if all(word in a.name.lower() for word in words)]

    def article(self, id: str) -> Article | None:
        return next((a for a in self.articles if str(a.id) == id), None)


def make_shop(level: int, rng: random.Random) -> Shop:
    """Return a shop. Level 1: order an article; 2: some of it for somebody; 3: the cheapest one, with a coupon."""
    count = {1: 4, 2: 5, 3: 9}[level]
    names = rng.sample([(maker, kind) for maker in MAKERS for kind in KINDS], count)
    if level == 3:
        # Enough of one kind and colour that prices must be compared.
        kind, colour = rng.choice(KINDS), rng.choice(COLOURS)
        names = [(maker, kind) for maker in rng.sample(MAKERS, 5)] + [n for n in names if n[1] != kind][:4]
        colours = [colour] * 3 + [rng.choice([c for c in COLOURS if c != colour]) for _ in names[3:]]
    else:
        colours = [rng.choice(COLOURS) for _ in names]
    prices = rng.sample(range(5, 100), len(names))
    rows = list(zip(names, colours, prices, strict=True))
    rng.shuffle(rows)
    articles = tuple(Article(i + 1, *name, c, price) for i, (name, c, price) in enumerate(rows))
    coupon = f"{rng.choice(COLOURS).upper()}{rng.randint(10, 99)}"
    person, wanted_count = rng.choice(PEOPLE), rng.randint(2, MOST)
    if level == 3:
        alike = [a for a in articles if (a.kind, a.colour) == (kind, colour)]
        article = min(alike, key=lambda a: a.price)
        goal = f"Order the cheapest {colour} {kind} for {person}, with the coupon of the news page."
        wanted = Order(article.id, 1, person, coupon)
    else:
        article = rng.choice(articles)
        goal = f"Order one {article.name}."
        wanted = Order(article.id)
        if level == 2:
            goal = f"Order {wanted_count} of {article.name} for {person}."
            wanted = Order(article.id, wanted_count, person)
    return Shop(level, articles, goal, wanted, coupon)
