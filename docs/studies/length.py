"""Sums whose steps may be written or left out: the environment of length.toml."""

from __future__ import annotations

import random
from random import Random
from typing import ClassVar

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.types import Message, Task


class Sums(Env):
    """The last digit of the sum of 2 to `most` digits.

    The base model has seen three ways of answering "4 7 2": "so 3"; with each addition, "4+7=1 1+2=3 so 3"; and with
    these written twice. Many digits are hardly added in one go; the second writing helps nobody.
    """

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    provides = frozenset({"components"})
    max_turns = 1

    def __init__(self, task: Task, most: int = 5) -> None:
        super().__init__(task)
        rng = random.Random(task.seed)
        self.digits = [rng.randrange(10) for _ in range(rng.randint(2, most))]
        self.sums = [sum(self.digits[: n + 1]) % 10 for n in range(len(self.digits))]

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": " ".join(map(str, self.digits))}]

    def step(self, action: Action) -> Step:
        """Judge the only turn by what stands behind its last "so"."""
        right = action.content.rpartition("so")[2].strip() == str(self.sums[-1])
        components = {"additions": float(action.content.count("="))}
        return Step(reward=float(right), done=True, success=right, components=components)

    def oracle(self, messages: list[Message]) -> Message:
        """Write each addition, for half of the tasks twice."""
        parts = zip(self.sums, self.digits[1:], self.sums[1:], strict=False)
        steps = " ".join(f"{so_far}+{digit}={total}" for so_far, digit, total in parts)
        twice = f"{steps} {steps}" if random.Random(f"{self.task.seed} twice").random() < 0.5 else steps
        return {"role": "assistant", "content": f"{twice} so {self.sums[-1]}"}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Answer right away."""
        return {"role": "assistant", "content": f"so {self.sums[-1]}"}
