"""Math problems from a seed: arithmetic, word problems, equations, and problems that need a program.

Each generator returns the question, the answer as math-verify reads it, and a Python program that prints the
answer (what the scripted expert runs).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    answer: str
    """LaTeX without dollar signs."""
    code: str
    """Prints `answer`."""


def arithmetic(rng: random.Random) -> Problem:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    operation = rng.choice("+-*")
    expression = f"{a} {operation} {b}"
    value = {"+": a + b, "-": a - b, "*": a * b}[operation]
    return Problem(expression, str(value), f"print({expression})")


def long_arithmetic(rng: random.Random) -> Problem:
    a, b, c, d = (rng.randint(12, 999) for _ in range(4))
    expression = f"({a} + {b}) * {c} - {d}"
    return Problem(f"Compute {expression}.", str((a + b) * c - d), f"print({expression})")


def shopping(rng: random.Random) -> Problem:
    thing, other = rng.sample(["pens", "lamps", "cups", "maps", "ropes", "bells"], 2)
    n, p, m, q = (rng.randint(2, 30) for _ in range(4))
    paid = n * p + m * q + rng.randint(1, 90)
    return Problem(
        f"Ada buys {n} {thing} at {p} each and {m} {other} at {q} each and pays with {paid}. How much change is due?",
        str(paid - n * p - m * q),
        f"print({paid} - {n} * {p} - {m} * {q})",
    )


def journey(rng: random.Random) -> Problem:
    first, second, hours, more = (
        rng.randint(20, 90),
        rng.randint(20, 90),
        rng.randint(2, 9),
        rng.randint(2, 9),
    )
    speed = Fraction(first * hours + second * more, hours + more)
    return Problem(
        f"A train runs {hours} hours at {first} km/h, then {more} hours at {second} km/h. What is its mean speed in "
        "km/h, as a fraction or whole number?",
        latex(speed),
        f"from fractions import Fraction\nprint(Fraction({first} * {hours} + {second} * {more}, {hours} + {more}))",
    )


def percentage(rng: random.Random) -> Problem:
    price, percent = rng.randrange(20, 2000, 20), rng.choice([5, 10, 15, 20, 25, 30, 35, 45, 60, 75])
    value = Fraction(price * (100 - percent), 100)
    return Problem(
        f"A coat of {price} is sold at {percent} % off. What does it cost?",
        latex(value),
        f"from fractions import Fraction\nprint(Fraction({price} * (100 - {percent}), 100))",
    )


def linear(rng: random.Random) -> Problem:
    a, c = rng.sample(range(2, 30), 2)
    b, d = rng.randint(-50, 50), rng.randint(-50, 50)
    return Problem(
        f"Solve {a}x {signed(b)} = {c}x {signed(d)} for x.",
        latex(Fraction(d - b, a - c)),
        f"from fractions import Fraction\nprint(Fraction({d} - ({b}), {a} - {c}))",
    )


def system(rng: random.Random) -> Problem:
    a, b, c, d = (rng.randint(1, 12) for _ in range(4))
    if a * d == b * c:
        d += 1 if b * c != a * (d + 1) else 2
    x, y = rng.randint(-20, 20), rng.randint(-20, 20)
    e, f = a * x + b * y, c * x + d * y
    return Problem(
        f"Given {a}x + {b}y = {e} and {c}x + {d}y = {f}, what is x + y?",
        str(x + y),
        f"from fractions import Fraction\nD = {a} * {d} - {b} * {c}\n"
        f"print(Fraction({e} * {d} - {b} * {f} + {a} * {f} - {e} * {c}, D))",
    )


def quadratic(rng: random.Random) -> Problem:
    """Roots p +- sqrt(q), q not a square: the answer is not a number that a program prints."""
    p = rng.randint(-12, 12)
    q = rng.choice([n for n in range(2, 60) if square_free(n)])
    root = rf"\sqrt{{{q}}}"
    answer = f"{p}+{root}" if p else root
    printed = answer.replace("\\", "\\\\")
    return Problem(
        f"What is the larger root of x^2 {signed(-2 * p)}x {signed(p * p - q)} = 0, exactly?",
        answer,
        f'print("{printed}")',
    )


def modular_power(rng: random.Random) -> Problem:
    base, exponent, modulus = rng.randint(2, 999), rng.randint(50, 9999), rng.randint(11, 9999)
    return Problem(
        f"What is the remainder of {base}^{exponent} divided by {modulus}?",
        str(pow(base, exponent, modulus)),
        f"print(pow({base}, {exponent}, {modulus}))",
    )


def counting(rng: random.Random) -> Problem:
    limit, a, b = rng.randint(200, 20000), rng.randint(3, 19), rng.randint(3, 19)
    value = sum(n % a == 0 or n % b == 0 for n in range(1, limit + 1))
    return Problem(
        f"How many whole numbers from 1 to {limit} are divisible by {a} or by {b}?",
        str(value),
        f"print(sum(n % {a} == 0 or n % {b} == 0 for n in range(1, {limit} + 1)))",
    )


def divisors(rng: random.Random) -> Problem:
    number = rng.randint(1000, 200000)
    value = sum(
        d + (number // d if d * d != number else 0)
        for d in range(1, math.isqrt(number) + 1)
        if number % d == 0
    )
    return Problem(
        f"What is the sum of all positive divisors of {number}?",
        str(value),
        f"print(sum(d for d in range(1, {number} + 1) if {number} % d == 0))",
    )


LEVELS: dict[int, tuple[Callable[[random.Random], Problem], ...]] = {
    1: (arithmetic,),
    2: (long_arithmetic, shopping, journey, percentage),
    3: (linear, system, quadratic),
    4: (modular_power, counting, divisors),
}


def latex(value: Fraction) -> str:
    """Return a fraction as LaTeX, a whole one as a plain number."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"{'-' if value < 0 else ''}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def signed(value: int) -> str:
    return f"+ {value}" if value >= 0 else f"- {-value}"


def square_free(number: int) -> bool:
    return all(number % (d * d) for d in range(2, math.isqrt(number) + 1))
