"""Reach a target number from given ones with + - * /, each number at most once.

The answer is one expression, the turn's last line. A wrong one is answered with its value, until the attempts are
used up. Reward 1 for an expression with exactly the target's value.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.countdown.reward import judge, value_of
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.tools import say
from asyncrl.rewards.marks import last_between
from asyncrl.types import Message, Task

SIZES = {1: (2, 9), 2: (3, 12), 3: (4, 25), 4: (6, 10)}
"""Level -> the number of numbers, and the largest of them; the hardest level adds some of `LARGE`."""
LARGE = (25, 50, 75, 100)
MAX_TARGET = 999
LARGEST = 100
"""The most that `largest` may be."""
RULES = "Reach the target with + - * / from the numbers, each at most once. Answer with the expression."
RULES_ALL = "Reach the target with + - * / from the numbers, each exactly once. Answer with the expression."


@dataclass(frozen=True, slots=True)
class Problem:
    numbers: tuple[int, ...]
    target: int
    solution: str

    @property
    def question(self) -> str:
        return f"{' '.join(map(str, self.numbers))} make {self.target}"

    @property
    def key(self) -> str:
        return f"{sorted(self.numbers)} {self.target}"


class Countdown(ProceduralEnv):
    """Reach a target number from given ones with + - * /.

    `level` 1 to 4 has 2 to 6 numbers, of at most `largest`, or what the level says for 0; `attempts` answers are
    allowed; `use_all` demands every number."""

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True

    def __init__(
        self, task: Task, level: int = 1, attempts: int = 2, use_all: bool = False, largest: int = 0
    ) -> None:
        super().__init__(task, level)
        whole_number("largest", largest, 0, LARGEST)
        self.max_turns = whole_number("attempts", attempts, 1, 16)
        self.use_all = use_all
        self.problem = self.draw(lambda rng: make(rng, self.level, use_all, largest), lambda p: p.key)
        self.attempts = 0

    def reset(self) -> list[Message]:
        rules = RULES_ALL if self.use_all else RULES
        return [{"role": "system", "content": rules}, {"role": "user", "content": self.problem.question}]

    def step(self, action: Action) -> Step:
        """Judge an expression; the answer to a wrong one says why."""
        self.attempts += 1
        wrong = judge(extract(action.content), list(self.problem.numbers), self.problem.target, self.use_all)
        components = {"solved": float(not wrong), "valid": float(not wrong or wrong.startswith("that makes"))}
        if not wrong:
            return Step(reward=1.0, done=True, success=True, components=components)
        if self.attempts >= self.max_turns:
            return Step(done=True, success=False, components=components)
        return Step([{"role": "user", "content": wrong}], components=components)

    def oracle(self, messages: list[Message]) -> Message:
        return say(self.problem.solution)

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Return a random expression of all the numbers."""
        numbers = list(self.problem.numbers)
        rng.shuffle(numbers)
        text = str(numbers[0])
        for number in numbers[1:]:
            text = f"{_wrapped(text)} {rng.choice('+-*/')} {number}"
        return say(text)

    def problem_key(self) -> str:
        return self.problem.key

    def secrets(self) -> tuple[str, ...]:
        return (self.problem.solution,)


def make(rng: random.Random, level: int, use_all: bool, largest: int = 0) -> Problem:
    """Draw numbers and combine them at random until the result is a suitable target. largest: 0 for the level's."""
    count, most = SIZES[level]
    largest = largest or most
    while True:
        numbers = [rng.randint(1, largest) for _ in range(count)]
        if level == max(SIZES):
            large = rng.randint(1, 3)
            numbers[:large] = rng.sample(LARGE, large)
        used = count if use_all or level < 3 else rng.randint(count - 1, count)
        solution = _combine(rng, [str(n) for n in rng.sample(numbers, used)])
        target = value_of(solution)[0]
        if target.denominator == 1 and 0 < target <= MAX_TARGET and int(target) not in numbers:
            return Problem(tuple(numbers), int(target), solution)


def extract(content: str) -> str:
    """Return the expression of an answer: inside the last <answer> tag, else the last line, without "= 24"."""
    tagged = last_between(content, "<answer>", "</answer>")
    lines = (content if tagged is None else tagged).strip().splitlines()
    return lines[-1].partition("=")[0].strip() if lines else ""


def _combine(rng: random.Random, parts: list[str]) -> str:
    """Join expressions pairwise by random operations; a division is kept only if it has no remainder."""
    while len(parts) > 1:
        left = parts.pop(rng.randrange(len(parts)))
        right = parts.pop(rng.randrange(len(parts)))
        operation = rng.choice("+-*/")
        a, b = value_of(left)[0], value_of(right)[0]
        if operation == "/" and (b == 0 or (a / b).denominator != 1):
            operation = "*"
        if operation == "-" and a < b:
            left, right = right, left
        parts.append(f"{_wrapped(left)} {operation} {_wrapped(right)}")
    return parts[0]


def _wrapped(text: str) -> str:
    return f"({text})" if " " in text else text
