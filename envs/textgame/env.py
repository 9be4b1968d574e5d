"""Text games: an adventure with keys and doors, a code to break, a thing to find by questions.

An action is one command. Reward 1 for winning; a command that the game does not accept costs the turn.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import one_of
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.textgame.adventure import Adventure
from asyncrl.envs.textgame.game import Game
from asyncrl.envs.textgame.mastermind import Mastermind
from asyncrl.envs.textgame.twenty import TwentyQuestions
from asyncrl.types import Message, Task

GAMES: dict[str, Callable[[int, int], Game]] = {
    "adventure": Adventure,
    "mastermind": Mastermind,
    "twenty": TwentyQuestions,
}
MIXED = "mixed"


class TextGame(ProceduralEnv):
    """`game` is "adventure", "mastermind", "twenty" or "mixed" (by the task's seed); `level` from 1 to 3."""

    blocking: ClassVar[bool] = False
    in_worker: ClassVar[bool] = True
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(self, task: Task, game: str = MIXED, level: int = 1) -> None:
        super().__init__(task, level)
        if one_of("game", game, (MIXED, *GAMES)) == MIXED:
            game = list(GAMES)[task.seed // 2 % len(GAMES)]
        self.name = game
        self.game: Game = self.draw(lambda rng: GAMES[game](rng.getrandbits(32), self.level), lambda g: g.key)
        self.max_turns = self.game.max_turns
        self.turn = 0

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": f"{self.game.rules}\n{self.game.look()}"}]

    def step(self, action: Action) -> Step:
        """Play one command; the last allowed turn ends the episode."""
        self.turn += 1
        reply = self.game.play(" ".join(action.content.lower().split()))
        over = reply.over or self.turn >= self.max_turns
        return Step(
            [] if over else [{"role": "user", "content": reply.text}],
            reward=float(reply.won),
            done=over,
            success=reply.won if over else None,
            components={"win": float(reply.won), "invalid": float(not reply.valid)},
        )

    def oracle(self, messages: list[Message]) -> Message:
        return {"role": "assistant", "content": self.game.expert()}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return {"role": "assistant", "content": self.game.guess(rng)}

    def problem_key(self) -> str:
        return f"{self.name} {self.game.key}"
