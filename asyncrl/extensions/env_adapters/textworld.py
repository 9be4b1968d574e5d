"""TextWorld games: made from the task's seed, or compiled games of the user's own."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.extensions.env_adapters.textworld_games import GameSize, game_file
from asyncrl.types import Message, Task

META = frozenset(
    {"save", "restore", "restart", "quit", "q", "undo", "script", "transcript", "record", "replay"}
)
"""Commands to the interpreter, some of which write files; they are refused."""
SENTENCE = re.compile(r"[.,;!?]|\bthen\b")
MAX_COMMAND_CHARACTERS = 100
PROMPT = re.compile(r"\n>\s.*", re.DOTALL)
SUFFIXES = (".z8", ".ulx")


class TextWorld(AdapterEnv):
    """Play a TextWorld game, made from the seed or one of the user's own.

    It has `rooms`, `objects` and a quest of `quest_length` commands, or is one of the games in folder `games`.
    `commands` = true lists the possible commands. Made games are cached in folder `cache`. The reward is the score
    gained by a turn as a share of the game's highest. `max_turns` = 0 allows three times the quest's length plus two;
    50 with the user's own games.
    """

    library: ClassVar[str] = "textworld"
    extra: ClassVar[str] = "textworld"
    check_tasks: ClassVar[int] = 4
    """Tasks that `asyncrl env check` plays by default: making a game takes seconds."""

    def __init__(
        self,
        task: Task,
        rooms: int = 2,
        objects: int = 3,
        quest_length: int = 2,
        games: str = "",
        commands: bool = True,
        cache: str = ".cache/textworld",
        max_turns: int = 0,
    ) -> None:
        super().__init__(task)
        size = GameSize(rooms, objects, quest_length)
        size.check()
        library = self.load()
        file = Path(task.data.get("game", "")) if games else game_file(size, task.seed, Path(cache))
        inside = not games or file.resolve().is_relative_to(Path(games).resolve())
        if not file.is_file() or not inside:
            raise ValueError(
                f"games: task {task.id!r} names no game file of {games!r} in its data: {str(file)!r}"
            )
        self.max_turns = max_turns or (50 if games else 3 * quest_length + 2)
        self.commands = commands
        wanted = ("admissible_commands", "policy_commands", "won", "lost", "objective", "score", "max_score")
        infos = dict.fromkeys((*wanted, "feedback", "description", "inventory"), True)
        # Its interpreter warns for every game but the classics that it cannot count the score; TextWorld counts it.
        warnings.filterwarnings("ignore", category=self.load("jericho.jericho").UnsupportedGameWarning)
        self.game = library.start(str(file), library.EnvInfos(**infos))
        self.state = self.game.reset()
        self.turn, self.score = 0, 0.0

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield seeds, or the game files of `games`: every other one for train."""
        if not config.get("games"):
            yield from super().tasks(split, env, **config)
            return
        files = sorted(p for p in Path(config["games"]).rglob("*") if p.suffix in SUFFIXES)
        if not files:
            raise ConfigError(f"env.config.games: {config['games']!r} holds no {' or '.join(SUFFIXES)} file")
        for index, file in enumerate(files[1 if split == "heldout" else 0 :: 2]):
            yield Task(f"{split}-{file.stem}", env, seed=index, split=split, data={"game": str(file)})

    def reset(self) -> list[Message]:
        opening = f"{self.state.objective or ''}\n\n{self.state.description or ''}".strip()
        return [{"role": "user", "content": self._with_commands(opening)}]

    def step(self, action: Action) -> Step:
        """Give one command to the game."""
        self.turn += 1
        command = " ".join(action.content.encode("ascii", "replace").decode().split())
        invalid = not command or len(command) > MAX_COMMAND_CHARACTERS or _is_meta(command)
        feedback, over = "That is not a command of this game.", False
        if not invalid:
            self.state, _, over = self.game.step(command.lower())
            feedback = PROMPT.sub("", self.state.feedback or "").strip()
        score = float(self.state.score or 0) / float(self.state.max_score or 1)
        gained, self.score = score - self.score, score
        done = over or self.turn >= self.max_turns
        return Step(
            [] if done else [{"role": "user", "content": self._with_commands(feedback)}],
            gained,
            done=done,
            success=bool(self.state.won) if done else None,
            components={"score": gained, "invalid": float(invalid)},
            observation_id=f"{self.state.description}\n{self.state.inventory}",
            truncated=done and not over,
        )

    def close(self) -> None:
        """End the interpreter."""
        self.game.close()

    def oracle(self, messages: list[Message]) -> Message:
        """Return the next command of the game's own solution. Raises `NotImplementedError` without one."""
        if not self.state.policy_commands:
            raise NotImplementedError
        return {"role": "assistant", "content": self.state.policy_commands[0]}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        commands = self.state.admissible_commands
        if not commands:
            raise NotImplementedError
        return {"role": "assistant", "content": rng.choice(sorted(commands))}

    def problem_key(self) -> str:
        """Return the opening and the solution."""
        return f"{self.reset()[0]['content']}\n{self.state.policy_commands}"

    def _with_commands(self, text: str) -> str:
        if not self.commands or not self.state.admissible_commands:
            return text
        return f"{text}\n\nCommands: {', '.join(sorted(self.state.admissible_commands))}"


def _is_meta(command: str) -> bool:
    """Return whether a sentence of a command is meant for the interpreter."""
    sentences = [sentence.split() for sentence in SENTENCE.split(command.lower())]
    return any(words[0] in META for words in sentences if words)
