"""Nim for two players: the main agent moves first, a further agent second. Whoever takes the last thing wins.

The policy plays both seats, each in its own conversation. On held-out tasks the second seat is scripted.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar

from asyncrl.env.protocol import MAIN_AGENT, Action, Step
from asyncrl.env.settings import one_of
from asyncrl.envs.nim.heaps import Heaps, make_heaps, written
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.tools import say
from asyncrl.types import Message, Task

SECOND = "second"
"""The agent that moves second."""
POLICY = "policy"
PLAYERS = (POLICY, "random", "optimal")
RULES = "Take things from one heap{most}. Who takes the last thing wins. Name heap and number, such as a 2."


class Nim(ProceduralEnv):
    """`level` is the number of heaps. With perfect play the first player wins from every start.

    `opponent` is who plays the second seat on training tasks, `heldout_opponent` on others: "policy", "random" or
    "optimal". The winner's reward is 1 and the loser's -1. An illegal move loses.
    """

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    max_turns = 24

    def __init__(
        self, task: Task, level: int = 1, opponent: str = POLICY, heldout_opponent: str = "optimal"
    ) -> None:
        super().__init__(task, level)
        opponent = one_of("opponent", opponent, PLAYERS)
        heldout_opponent = one_of("heldout_opponent", heldout_opponent, PLAYERS)
        self.opponent = heldout_opponent if task.split == "heldout" else opponent
        self.heaps: Heaps = self.draw(lambda rng: make_heaps(self.level, rng), lambda heaps: heaps.text)
        self.start = self.heaps
        self.rng = random.Random(f"opponent {task.seed}")
        self.moves = 0

    def reset(self) -> list[Message]:
        return self._opening()

    def step(self, action: Action) -> Step:
        """Make the move of the agent whose turn it is, and the scripted player's answer."""
        move = self.heaps.read(action.content) if not (action.tool_calls or action.parse_errors) else None
        if move is None:
            return self._end(won=False, illegal=True)
        self._move(move)
        if self.heaps.empty:
            return self._end(won=True)
        if self.opponent == POLICY:
            agent = SECOND if self.moves % 2 else MAIN_AGENT
            return Step(self._opening() if self.moves == 1 else self._shown(), agent=agent)
        answer = self.heaps.best(self.rng) if self.opponent == "optimal" else self._any(self.rng)
        self._move(answer)
        return self._end(won=False) if self.heaps.empty else Step(self._shown())

    def oracle(self, messages: list[Message]) -> Message:
        return say(written(self.heaps.best(random.Random(f"{self.task.seed} {self.moves}"))))

    def random_policy(self, messages: list[Message], rng: random.Random) -> Message:
        """A random legal move."""
        return say(written(self._any(rng)))

    def problem_key(self) -> str:
        return self.start.text

    def _opening(self) -> list[Message]:
        most = f", at most {self.heaps.most}" if self.level == 1 else ""
        return [{"role": "system", "content": RULES.format(most=most)}, *self._shown()]

    def _shown(self) -> list[Message]:
        return [{"role": "user", "content": self.heaps.text}]

    def _any(self, rng: random.Random) -> tuple[int, int]:
        return rng.choice(self.heaps.moves())

    def _move(self, move: tuple[int, int]) -> None:
        self.heaps = self.heaps.after(move)
        self.moves += 1

    def _end(self, won: bool, illegal: bool = False) -> Step:
        """End the game. won: by the player who has just moved, or against a script by the main agent."""
        reward = 1.0 if won else -1.0
        components: dict[str, Any] = {"illegal": float(illegal)}
        if self.opponent != POLICY:
            return Step(reward=reward, done=True, success=won, components=components)
        # With a move of the other player before, both have spoken.
        mover_is_main = (self.moves - (not illegal)) % 2 == 0
        other = SECOND if mover_is_main else MAIN_AGENT
        spoken = self.moves > (0 if illegal else 1)
        rewards = {other: -reward} if spoken else {}
        return Step(reward=reward, done=True, rewards=rewards, components=components)
