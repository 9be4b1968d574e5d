"""Programming problems from a seed: a statement, a reference program and inputs.

Level 1 is an expression, level 2 a decision, level 3 a list, level 4 a loop with a condition.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from asyncrl.envs.code.programs import run

OPERATIONS = "+-*"
READ_A_B = "a = read()\nb = read()\n"


@dataclass(frozen=True, slots=True)
class Problem:
    statement: str
    source: str
    """The reference program, as `asyncrl.envs.code.programs` renders it."""
    tests: tuple[tuple[str, str], ...]
    """(stdin, expected stdout), examples first, all different."""


def make(rng: random.Random, level: int, num_tests: int) -> Problem:
    """Draw a problem of a level with `num_tests` tests."""
    statement, source, inputs = LEVELS[level](rng)
    tests: dict[str, str] = {}
    while len(tests) < num_tests:
        numbers = inputs(rng)
        tests.setdefault(" ".join(map(str, numbers)) + "\n", f"{run(source, numbers)}\n")
    return Problem(statement, source, tuple(tests.items()))


Inputs = Callable[[random.Random], list[int]]
Draft = tuple[str, str, Inputs]


def pair(rng: random.Random) -> list[int]:
    return [rng.randint(10, 99), rng.randint(2, 50)]


def items(rng: random.Random) -> list[int]:
    """A count and as many numbers."""
    count = rng.randint(3, 8)
    return [count, *(rng.randint(1, 60) for _ in range(count))]


def expression(rng: random.Random) -> Draft:
    text = random_expression(rng)
    return f"Read a and b. Print {text}.", f"{READ_A_B}print({text})", pair


def random_expression(rng: random.Random) -> str:
    """An expression in a and b that is never negative for the inputs of `pair`."""
    k = rng.randint(2, 99)
    return rng.choice(
        [f"a + b * {k}", f"a * {k} + b", f"a * b + {k}", f"(a + b) * {k}", f"a * b * {k}", f"a + b + {k}",
         f"a * {k}", f"b * {k}", f"a + {k}", f"b + {k}", f"a * a + {k}", f"b * b + {k}"]
    )  # fmt: skip


def decision(rng: random.Random) -> Draft:
    k, m = rng.randint(2, 9), rng.randint(10, 60)
    what, value = rng.choice(
        [
            (f"the larger of a and b times {k}", f"a if a > b * {k} else b * {k}"),
            (f"the smaller of a and b plus {m}", f"a if a < b + {m} else b + {m}"),
            (f"the difference of a and {m}, without its sign", f"a - {m} if a > {m} else {m} - a"),
            (f"{k} if a is a multiple of b, otherwise {m}", f"{k} if a % b == 0 else {m}"),
            (f"the last digit of a, times {m}", f"a % 10 * {m}"),
            (f"a rounded down to a multiple of {k}", f"a // {k} * {k}"),
            (f"a plus b, but {m} if that is more than {m}", f"{m} if a + b > {m} else a + b"),
            (f"a if both are above {m}, otherwise b", f"a if a > {m} and b > {m} else b"),
            (f"1 if a or b is a multiple of {k}, otherwise 0", f"1 if a % {k} == 0 or b % {k} == 0 else 0"),
        ]
    )
    return f"Read integers a and b. Print {what}.", f"{READ_A_B}print({value})", pair


def sequence(rng: random.Random) -> Draft:
    """A fold over a list: s is the result so far, x the next number, p the one before it."""
    k, m = rng.randint(2, 9), rng.randint(10, 50)
    what, start, update = rng.choice(
        [
            (f"the sum of those that are multiples of {k}", 0, f"s + x if x % {k} == 0 else s"),
            (f"how many are greater than {m}", 0, f"s + 1 if x > {m} else s"),
            (f"the largest of them and {m}", m, "x if x > s else s"),
            (f"the sum of their squares modulo {m}", 0, f"(s + x * x) % {m}"),
            (f"the sum of them, each times {k}", 0, f"s + x * {k}"),
            (f"the sum of them, where numbers above {m} count as {m}", 0, f"s + {m} if x > {m} else s + x"),
            (
                f"how many differ from the one before by more than {k} (the first one never does)",
                0,
                f"s + 1 if n < c and (x > p + {k} or p > x + {k}) else s",
            ),
        ]
    )
    source = (
        f"c = read()\nn = c\np = 0\ns = {start}\n"
        f"while n > 0:\n x = read()\n s = {update}\n p = x\n n = n - 1\nprint(s)"
    )
    return f"Read n, then n integers. Print {what}.", source, items


def algorithm(rng: random.Random) -> Draft:
    k, c = rng.randint(2, 9), rng.randint(1, 20)
    what, start, test, body, result = rng.choice(
        [
            ("the greatest common divisor of a and b", "", "b > 0", ["r = a % b", "a = b", "b = r"], "a"),
            ("the sum of the decimal digits of a * b", "a = a * b\ns = 0", "a > 0",
             ["s = s + a % 10", "a = a // 10"], "s"),
            ("the number of ones in a * b written in binary", "a = a * b\ns = 0", "a > 0",
             ["s = s + a % 2", "a = a // 2"], "s"),
            ("the decimal digits of a * b in reverse order, as a number", "a = a * b\ns = 0", "a > 0",
             ["s = s * 10 + a % 10", "a = a // 10"], "s"),
            ("the number of divisors of a + b", "a = a + b\ns = 0\nd = 1", "d <= a",
             ["s = s + (1 if a % d == 0 else 0)", "d = d + 1"], "s"),
            ("a to the power of b, modulo 97", "s = 1", "b > 0", ["s = s * a % 97", "b = b - 1"], "s"),
            ("the number of steps that a needs to reach 1, where a step halves an even number and takes any other "
             "x to 3 * x + b - b % 2 + 1, counted to 100 at most", "s = 0\nb = b - b % 2 + 1", "a > 1 and s < 100",
             ["a = a // 2 if a % 2 == 0 else 3 * a + b", "s = s + 1"], "s"),
            ("the b-th Fibonacci number (1, 1, 2, 3, ...) modulo a", "x = 0\ny = 1", "b > 0",
             ["z = (x + y) % a", "x = y", "y = z", "b = b - 1"], "x % a"),
        ]
    )  # fmt: skip
    lines = "".join(f"\n {line}" for line in body)
    source = f"{READ_A_B}{start}\nwhile {test}:{lines}\nprint({k} * ({result}) + {c})"
    return f"Read integers a and b. Print {k} times x, plus {c}, where x is {what}.", source, pair


LEVELS: dict[int, Callable[[random.Random], Draft]] = {1: expression, 2: decision, 3: sequence, 4: algorithm}
