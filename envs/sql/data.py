"""A shop's database and questions about it, from a seed."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.envs.sql.database import Row

SCHEMA = """\
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT, category TEXT, price INTEGER);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers, month INTEGER);
CREATE TABLE lines (order_id INTEGER REFERENCES orders, product_id INTEGER REFERENCES products, quantity INTEGER);
"""
NAMES = (
    "Ada", "Ben", "Cem", "Dora", "Eli", "Fay", "Gus", "Hana", "Ivo", "Jan", "Kai", "Lea", "Mia", "Ned", "Ola", "Pia",
    "Quin", "Rosa", "Sam", "Tess", "Uma", "Vera", "Wim", "Yara", "Zoe",
)  # fmt: skip
CITIES = ("Basel", "Cork", "Graz", "Lyon", "Oslo", "Turin")
CATEGORIES = ("books", "food", "games", "tools")
PRODUCTS = (
    "lamp", "rope", "chess", "atlas", "bread", "drill", "dice", "novel", "honey", "saw", "cards", "poems", "cheese",
    "hammer", "puzzle", "diary", "coffee", "ladder", "kite", "comic",
)  # fmt: skip
SPENT = (
    "SELECT c.id, c.name, c.city, sum(l.quantity * p.price) AS spent FROM customers c "
    "JOIN orders o ON o.customer_id = c.id JOIN lines l ON l.order_id = o.id JOIN products p ON p.id = l.product_id "
    "GROUP BY c.id"
)
LINES = "FROM lines l JOIN products p ON p.id = l.product_id JOIN orders o ON o.id = l.order_id"
SIZES = {1: 8, 2: 14, 3: 18, 4: 24}
"""Level -> customers; there are as many orders and half as many products."""


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    sql: str
    ordered: bool
    """The order of the rows is part of the answer."""
    rows: list[Row]
    """The right result."""
    image: bytes
    """The database file."""


@dataclass(frozen=True, slots=True)
class Draft:
    question: str
    sql: str
    ordered: bool = False


def make(rng: random.Random, level: int) -> Problem:
    """Fill a database and ask a question of a level that has an answer."""
    while True:
        connection = fill(rng, SIZES[level])
        draft = rng.choice(LEVELS[level])(rng)
        rows = connection.execute(draft.sql).fetchall()
        image = connection.serialize()
        connection.close()
        if rows and rows[0][0] is not None:
            return Problem(draft.question, draft.sql, draft.ordered, rows, image)


def fill(rng: random.Random, size: int) -> sqlite3.Connection:
    """Return a database in memory with `size` customers and orders."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    names = rng.sample(NAMES, size)
    customers = [(i, name, rng.choice(CITIES)) for i, name in enumerate(names, 1)]
    chosen = rng.sample(PRODUCTS, max(4, size // 2))
    products = [(i, name, rng.choice(CATEGORIES), rng.randint(2, 99)) for i, name in enumerate(chosen, 1)]
    orders = [(i, rng.randint(1, size), rng.randint(1, 12)) for i in range(1, size + 1)]
    lines = [
        (order, product, rng.randint(1, 9))
        for order, *_ in orders
        for product in rng.sample(range(1, len(products) + 1), rng.randint(1, 3))
    ]
    for table, rows in (
        ("customers", customers),
        ("products", products),
        ("orders", orders),
        ("lines", lines),
    ):
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    connection.commit()
    return connection


def count_customers(rng: random.Random) -> Draft:
    city = rng.choice(CITIES)
    return Draft(
        f"How many customers live in {city}?", f"SELECT count(*) FROM customers WHERE city = '{city}'"
    )


def count_products(rng: random.Random) -> Draft:
    price = rng.randint(20, 80)
    return Draft(
        f"How many products cost more than {price}?", f"SELECT count(*) FROM products WHERE price > {price}"
    )


def price_of(rng: random.Random) -> Draft:
    name = rng.choice(PRODUCTS)
    return Draft(f"What does the {name} cost?", f"SELECT price FROM products WHERE name = '{name}'")


def city_of(rng: random.Random) -> Draft:
    name = rng.choice(NAMES)
    return Draft(f"Where does {name} live?", f"SELECT city FROM customers WHERE name = '{name}'")


def cheaper(rng: random.Random) -> Draft:
    price = rng.randint(30, 80)
    return Draft(
        f"Name the products cheaper than {price}, cheapest first, those of one price by name.",
        f"SELECT name FROM products WHERE price < {price} ORDER BY price, name",
        ordered=True,
    )


def orders_of(rng: random.Random) -> Draft:
    name = rng.choice(NAMES)
    return Draft(
        f"In which months did {name} order?",
        f"SELECT DISTINCT o.month FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.name = '{name}'",
    )


def orders_from(rng: random.Random) -> Draft:
    city, month = rng.choice(CITIES), rng.randint(3, 10)
    return Draft(
        f"How many orders came from {city} after month {month}?",
        f"SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.city = '{city}' "
        f"AND o.month > {month}",
    )


def per_category(rng: random.Random) -> Draft:
    what, sql = rng.choice(
        [("number of products", "count(*)"), ("highest price", "max(price)"), ("lowest price", "min(price)")]
    )
    return Draft(
        f"Give each category and its {what}.", f"SELECT category, {sql} FROM products GROUP BY category"
    )


def spent_by(rng: random.Random) -> Draft:
    name = rng.choice(NAMES)
    return Draft(f"How much has {name} spent?", f"SELECT spent FROM ({SPENT}) WHERE name = '{name}'")


def top_spenders(rng: random.Random) -> Draft:
    count = rng.randint(2, 4)
    return Draft(
        f"Name the {count} customers who spent most and how much, most first, equal ones by name.",
        f"SELECT name, spent FROM ({SPENT}) ORDER BY spent DESC, name LIMIT {count}",
        ordered=True,
    )


def revenue(rng: random.Random) -> Draft:
    first = rng.randint(1, 9)
    last = rng.randint(first + 1, 12)
    return Draft(
        f"Give each category's revenue in months {first} to {last}, where it has any.",
        f"SELECT p.category, sum(l.quantity * p.price) {LINES} WHERE o.month BETWEEN {first} AND {last} "
        "GROUP BY p.category",
    )


def never_ordered(rng: random.Random) -> Draft:
    city = rng.choice(CITIES)
    return Draft(
        f"Name the products that nobody in {city} has ordered.",
        "SELECT name FROM products WHERE id NOT IN (SELECT l.product_id FROM lines l JOIN orders o "
        f"ON o.id = l.order_id JOIN customers c ON c.id = o.customer_id WHERE c.city = '{city}')",
    )


def above_average(rng: random.Random) -> Draft:
    factor = rng.choice([("", "1"), ("half ", "0.5"), ("twice ", "2")])
    return Draft(
        f"Name the customers who spent more than {factor[0]}the mean of all customers who ordered.",
        f"SELECT name FROM ({SPENT}) WHERE spent > {factor[1]} * (SELECT avg(spent) FROM ({SPENT}))",
    )


def best_per_city(rng: random.Random) -> Draft:
    least = rng.randint(50, 400)
    return Draft(
        f"For each city, give it and the most that one customer there spent, where that is at least {least}.",
        f"SELECT city, max(spent) FROM ({SPENT}) GROUP BY city HAVING max(spent) >= {least}",
    )


def together(rng: random.Random) -> Draft:
    name = rng.choice(PRODUCTS)
    return Draft(
        f"Name the products that were in one order with the {name}, and in how many such orders each was.",
        "SELECT p.name, count(*) FROM lines l JOIN products p ON p.id = l.product_id WHERE l.order_id IN "
        f"(SELECT l.order_id {LINES} WHERE p.name = '{name}') AND p.name <> '{name}' GROUP BY p.name",
    )


def growth(rng: random.Random) -> Draft:
    category = rng.choice(CATEGORIES)
    return Draft(
        f"In which months was the revenue of {category} higher than in the month with such revenue before it?",
        "SELECT month FROM (SELECT month, total, lag(total) OVER (ORDER BY month) AS before FROM (SELECT o.month AS "
        f"month, sum(l.quantity * p.price) AS total {LINES} WHERE p.category = '{category}' GROUP BY o.month)) "
        "WHERE total > before",
    )


LEVELS: dict[int, tuple[Callable[[random.Random], Draft], ...]] = {
    1: (count_customers, count_products, price_of, city_of),
    2: (cheaper, orders_of, orders_from, per_category),
    3: (spent_by, top_spenders, revenue, never_ordered),
    4: (above_average, best_per_city, together, growth),
}
