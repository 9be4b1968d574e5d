"""Text navigation: reach the goal of a square grid in few moves, knowing only its direction.

An observation is "goal north east"; an action is one word, a direction. Reward 1 for reaching the goal.
Easy for a policy that reads the observation, hopeless at random.
"""

from __future__ import annotations

import random
from random import Random
from typing import ClassVar

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.types import Message, Task

MOVES = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
MAX_SIZE = 64


class Gridworld(Env):
    """`size` cells a side; `max_turns` moves. Start and goal follow from the task's seed."""

    provides = frozenset({"components", "matches"})
    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True

    def __init__(self, task: Task, size: int = 5, max_turns: int = 8) -> None:
        super().__init__(task)
        if not 2 <= size <= MAX_SIZE:
            raise ValueError(f"size: must be from 2 to {MAX_SIZE}, got {size}")
        if max_turns < 1:
            raise ValueError(f"max_turns: must be at least 1, got {max_turns}")
        self.size = size
        self.max_turns = max_turns
        rng = random.Random(task.seed)
        while True:
            self.x, self.y, self.goal_x, self.goal_y = (rng.randrange(size) for _ in range(4))
            distance = abs(self.x - self.goal_x) + abs(self.y - self.goal_y)
            if 0 < distance <= max_turns:
                break
        self.turn = 0

    def reset(self) -> list[Message]:
        return [self._observation()]

    def step(self, action: Action) -> Step:
        """Move; hitting the border or an unknown word costs the turn."""
        self.turn += 1
        word = action.content.strip().lower()
        matches = word in self._directions()
        if word in MOVES:
            dx, dy = MOVES[word]
            self.x = min(max(self.x + dx, 0), self.size - 1)
            self.y = min(max(self.y + dy, 0), self.size - 1)
        reached = (self.x, self.y) == (self.goal_x, self.goal_y)
        components = {"goal": float(reached), "invalid": float(word not in MOVES)}
        if reached or self.turn >= self.max_turns:
            return Step(
                reward=float(reached), done=True, success=reached, components=components, matches=matches
            )
        place = f"{self.x},{self.y}"
        return Step([self._observation()], 0.0, components=components, observation_id=place, matches=matches)

    def oracle(self, messages: list[Message]) -> Message:
        return {"role": "assistant", "content": self._directions()[0]}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return {"role": "assistant", "content": rng.choice(list(MOVES))}

    def _observation(self) -> Message:
        return {"role": "user", "content": " ".join(["goal", *self._directions()])}

    def _directions(self) -> list[str]:
        """Return the moves that lead to the goal."""
        found = []
        if self.goal_y != self.y:
            found.append("north" if self.goal_y > self.y else "south")
        if self.goal_x != self.x:
            found.append("east" if self.goal_x > self.x else "west")
        return found
