"""Games of TextArena: alone, against players that are scripted, or with the policy in both seats."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import MAIN_AGENT, Action, Step
from asyncrl.errors import EnvironmentFailure
from asyncrl.extensions.env_adapters.own_random import OwnRandom
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.import_path import load_object
from asyncrl.types import Message, Task

Opponent = Callable[[str, random.Random], str]
"""A function from what a player was shown since its last move, and its own generator, to its move."""

MOVE = re.compile(r"\[[^\[\]\n]{1,40}\]")
POLICY = "policy"
"""Instead of a scripted player: the policy plays that seat, too."""
SECOND = "second"
"""The agent of the seat that does not move first, where the policy plays both."""
MAX_MOVES = 1000
"""Moves of other players between two of ours."""


def listed(shown: str, rng: random.Random) -> str:
    """Return a random bracketed move of the last part that shows any. Raises `EnvironmentFailure`."""
    for part in reversed(shown.split("\n\n")):
        if moves := [m for m in MOVE.findall(part) if not m.startswith("[Player")]:
            return rng.choice(moves)
    raise EnvironmentFailure(
        f"opponent 'listed' finds no move like [4] in what it is shown; name one by import path: {shown[:200]!r}"
    )


class TextArena(AdapterEnv):
    """Play a TextArena game, alone or against scripted players.

    `id` names it; `make` are arguments. We play seat `player` of `players`, or with `player` = -1 a seat derived from
    the task's seed. The others are played by `opponent`: "listed" (random among the bracketed moves that the game
    lists), or the import path of a function (shown, rng) -> move. A turn without brackets is put in brackets. The
    reward is the game's own for our seat; success is a reward of at least 1.

    With `opponent` = "policy" both seats of a game of two are the policy's: the main agent plays the one that moves
    first and the agent "second" the other, each is rewarded for its own seat, and there is no verdict.
    `heldout_opponent` replaces `opponent` on held-out tasks.
    """

    library: ClassVar[str] = "textarena"
    extra: ClassVar[str] = "textarena"

    def __init__(
        self,
        task: Task,
        id: str = "TicTacToe-v0",
        make: dict[str, Any] | None = None,
        players: int = 2,
        player: int = -1,
        opponent: str = "listed",
        heldout_opponent: str = "",
        max_turns: int = 64,
    ) -> None:
        super().__init__(task)
        if players < 1 or not -1 <= player < players:
            raise ValueError(f"player: must be from 0 to {players - 1}, or -1, got {player}")
        self.players, self.max_turns = players, max_turns
        self.player = task.seed // 2 % players if player == -1 else player
        if task.split == "heldout" and heldout_opponent:
            opponent = heldout_opponent
        self.both = opponent == POLICY
        if self.both and players != 2:
            raise ValueError(f"players: must be 2 for opponent='policy', got {players}")
        self.opponent: Opponent = (
            listed if opponent in ("listed", POLICY) else load_object("opponent", opponent)
        )
        self.spoken = {self.player}
        """Seats of the policy that have been shown the game."""
        self.rngs = [random.Random(f"{task.seed} {seat}") for seat in range(players)]
        self.random = OwnRandom(task.seed)
        self.turn = 0
        self.game = self._make(id, dict(make or {}))

    def reset(self) -> list[Message]:
        with self.random:
            try:
                self.game.reset(num_players=self.players, seed=self.task.seed)
            except AssertionError as error:
                raise EnvironmentFailure(f"players: the game refuses {self.players}: {error}") from error
            if self.both:
                self.player = self.game.state.current_player_id
                self.spoken = {self.player}
            elif self._others():
                raise EnvironmentFailure("the game was over before our first move")
            return [{"role": "user", "content": self._shown(self.player)}]

    def step(self, action: Action) -> Step:
        """Make our move, then those of the others."""
        self.turn += 1
        move = action.content.strip()
        with self.random:
            seat = self.game.state.current_player_id
            done, _ = self.game.step(action=move if "[" in move else f"[{move}]")
            done = done or (not self.both and self._others())
            if not done and self.turn < self.max_turns:
                return self._next()
            rewards, info = self.game.close()
        if self.both:
            return self._end(seat, rewards or {}, info or {}, done)
        reward = float((rewards or {}).get(self.player, 0.0))
        invalid = bool((info or {}).get(self.player, {}).get("invalid_move"))
        return Step(
            reward=reward,
            done=True,
            success=reward >= 1.0,
            components={"game": reward, "invalid": float(invalid)},
            truncated=not done,
        )

    def _next(self) -> Step:
        """Show the game to the policy's seat whose turn it is."""
        seat = self.game.state.current_player_id if self.both else self.player
        self.spoken.add(seat)
        agent = (MAIN_AGENT if seat == self.player else SECOND) if self.both else None
        return Step([{"role": "user", "content": self._shown(seat)}], agent=agent)

    def _end(self, seat: int, rewards: dict[int, float], info: dict[int, Any], done: bool) -> Step:
        """End a game between two seats of the policy, of which `seat` has just moved."""
        other = 1 - seat
        invalid = bool(info.get(seat, {}).get("invalid_move"))
        agent = MAIN_AGENT if other == self.player else SECOND
        return Step(
            reward=float(rewards.get(seat, 0.0)),
            done=True,
            components={"invalid": float(invalid)},
            truncated=not done,
            rewards={agent: float(rewards.get(other, 0.0))} if other in self.spoken else {},
        )

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Return a move that the game lists. Raises `NotImplementedError` if it lists none."""
        for message in reversed(messages):
            try:
                return {"role": "assistant", "content": listed(str(message["content"]), rng)}
            except EnvironmentFailure:
                continue
        raise NotImplementedError

    def _others(self) -> bool:
        """Let the others move until it is our turn; return whether the game is over."""
        for _ in range(MAX_MOVES):
            seat = self.game.state.current_player_id
            if seat == self.player:
                return False
            move = self.opponent(self._shown(seat), self.rngs[seat])
            done, _ = self.game.step(action=move)
            if done:
                return True
        raise EnvironmentFailure(f"the other players made {MAX_MOVES} moves and it was never our turn")

    def _shown(self, seat: int | None = None) -> str:
        """Return what a player was told since its last move, without its own moves."""
        _, seen = self.game.get_observation()
        seat = self.player if seat is None else seat
        names = self.game.state.role_mapping
        own = self.load().ObservationType.PLAYER_ACTION
        lines = []
        for sender, text, kind in seen:
            if kind is own and sender == seat:
                continue
            lines.append(text if sender == -1 else f"{names.get(sender, sender)}: {text}")
        return "\n\n".join(line.strip() for line in lines)

    def _make(self, id: str, arguments: dict[str, Any]) -> Any:
        library = self.load()
        known = self.load("textarena.envs.registration").ENV_REGISTRY
        if f"{id}-raw" not in known:
            raise ValueError(f"id: unknown game {id!r}; see `textarena.envs.registration.ENV_REGISTRY`")
        with self.random:
            # Without wrappers: they repeat what was shown before, which the conversation already contains.
            return library.make(f"{id}-raw", **arguments)
