"""What environments with generated problems share: difficulty levels and disjoint splits."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import ClassVar, TypeVar

from asyncrl.env.protocol import Env
from asyncrl.types import Task

Problem = TypeVar("Problem")
TRIES = 1000


class ProceduralEnv(Env):
    """An environment whose problem follows from the task's seed and a difficulty level.

    `level` is one of `levels`, or 0 for one drawn by the seed; a task's `data["level"]` takes precedence.
    """

    provides = frozenset({"components"})
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    """Difficulties, easiest first; empty where tasks have none."""

    def __init__(self, task: Task, level: int = 1) -> None:
        super().__init__(task)
        self.level: int = 0
        if not self.levels:
            return
        level = task.data.get("level", level)
        if isinstance(level, bool) or level not in (0, *self.levels):
            allowed = ", ".join(map(str, self.levels))
            raise ValueError(f"level: must be one of {allowed}, or 0 for any of them, got {level!r}")
        self.level = level or random.Random(f"level {task.seed}").choice(self.levels)

    def draw(self, make: Callable[[random.Random], Problem], key: Callable[[Problem], str]) -> Problem:
        """Return the seed's problem. Problems of even seeds (train) and odd ones (held-out) never have equal keys.

        Half of all keys belong to even seeds and half to odd ones, by their checksum; `make` is called until a
        problem of the seed's half comes up. Raises `ValueError` if none does in `TRIES` calls.
        """
        rng = random.Random(self.task.seed)
        for _ in range(TRIES):
            problem = make(rng)
            if zlib.crc32(key(problem).encode()) % 2 == self.task.seed % 2:
                return problem
        raise ValueError(f"level: {self.level} of {self.task.env!r} has too few problems to split")

    def problem_key(self) -> str:
        """Return a text that is equal for equal problems (checked to differ between the splits)."""
        raise NotImplementedError

    def secrets(self) -> tuple[str, ...]:
        """Return texts that no observation may contain before the episode is over."""
        return ()
