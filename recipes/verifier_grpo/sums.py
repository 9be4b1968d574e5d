"""The last digit of a sum: an environment whose answers a second policy verifies."""

from __future__ import annotations

import random
from random import Random
from typing import ClassVar

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.types import Message, Task


class Sums(Env):
    """The last digit of the sum of 2 to `most` digits.

    The base model has seen two ways of answering "4 7 2": with each addition, "4+7=1 1+2=3 so 3", and a guess, "so 8".
    """

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    max_turns = 1

    def __init__(self, task: Task, most: int = 4) -> None:
        super().__init__(task)
        rng = random.Random(task.seed)
        self.digits = [rng.randrange(10) for _ in range(rng.randint(2, most))]
        self.sums = [sum(self.digits[: n + 1]) % 10 for n in range(len(self.digits))]

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": " ".join(map(str, self.digits))}]

    def step(self, action: Action) -> Step:
        """Judge the only turn by what stands behind its last "so"."""
        right = action.content.rpartition("so")[2].strip() == str(self.sums[-1])
        return Step(reward=float(right), done=True, success=right)

    def oracle(self, messages: list[Message]) -> Message:
        """Write each addition, then the answer."""
        return {"role": "assistant", "content": f"{self.verification()} so {self.sums[-1]}"}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Guess, rightly in half of the episodes."""
        wrong = [digit for digit in range(10) if digit != self.sums[-1]]
        return {
            "role": "assistant",
            "content": f"so {self.sums[-1] if rng.random() < 0.5 else rng.choice(wrong)}",
        }

    def verification(self) -> str:
        """Return what an expert writes before the verdict: each addition."""
        parts = zip(self.sums, self.digits[1:], self.sums[1:], strict=False)
        return " ".join(f"{so_far}+{digit}={total}" for so_far, digit, total in parts)
