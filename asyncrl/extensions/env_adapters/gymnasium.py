"""Gymnasium environments with a discrete action space, MiniGrid and BabyAI included, played with words."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.extensions.env_adapters.gym_text import TextOf, ansi_text, minigrid_text, plain_text
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.import_path import load_module, load_object
from asyncrl.types import Message, Task

TEXTS: dict[str, TextOf] = {"ansi": ansi_text, "minigrid": minigrid_text, "observation": plain_text}
NAMES = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
}
"""Names of the actions, in order, by the beginning of the environment's id."""
REWARDS = ("success", "env")
TRIES, STRIDE, SEEDS = 16, 1_000_003, 2**31
"""Starts tried to find one of the task's split, and the step between their seeds."""
MAX_TURNS = 64
"""Used if neither the environment nor the recipe sets a limit."""


class Gymnasium(AdapterEnv):
    """Play a Gymnasium, MiniGrid or BabyAI environment with words.

    `id` names it, or `module:id` where a module registers it; `make` are arguments. `actions` are words for the
    actions 0, 1, ... (default: the environment's own names, or the numbers). `text` is "minigrid", "ansi",
    "observation", "auto", or the import path of a function (env, observation) -> text. `reward` is "env" (the
    environment's own) or "success" (1 at the end of an episode that terminates with a return above `success_above`,
    else 0). `max_turns` = 0 takes the environment's own limit. Half of all different starts belong to each split, by
    their checksum.
    """

    library: ClassVar[str] = "gymnasium"
    extra: ClassVar[str] = "gymnasium"

    def __init__(
        self,
        task: Task,
        id: str = "BabyAI-GoToRedBallGrey-v0",
        make: dict[str, Any] | None = None,
        actions: list[str] | None = None,
        text: str = "auto",
        reward: str = "success",
        success_above: float = 0.0,
        max_turns: int = 0,
    ) -> None:
        super().__init__(task)
        if reward not in REWARDS:
            raise ValueError(f"reward: must be one of {', '.join(REWARDS)}, got {reward!r}")
        self.reward, self.success_above = reward, success_above
        self.env = self._make(id, dict(make or {}))
        self.actions = self._names(id, actions)
        self.text_of = self._text_of(text)
        own = getattr(self.env.unwrapped, "max_steps", None) or self.env.spec.max_episode_steps
        self.max_turns = max_turns or own or MAX_TURNS
        self._draw()
        self.turn, self.total = 0, 0.0
        self._bot: Any = None
        self._last: int | None = None

    def reset(self) -> list[Message]:
        rules = f"Answer with one action: {', '.join(self.actions)}."
        return [{"role": "user", "content": f"{rules}\n{self.opening}"}]

    def step(self, action: Action) -> Step:
        """Take the named action; anything else costs the turn without a move."""
        self.turn += 1
        word = " ".join(action.content.lower().split())
        if word not in self.actions:
            return self._answer(0.0, False, False, invalid=True)
        self._last = self.actions.index(word)
        self.observation, reward, terminated, truncated, _ = self.env.step(self._last)
        self.total += float(reward)
        return self._answer(float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        """Free the library's resources."""
        self.env.close()

    def oracle(self, messages: list[Message]) -> Message:
        """BabyAI's own bot. Raises `NotImplementedError` for other environments."""
        if self._bot is None:
            if not hasattr(self.env.unwrapped, "instrs"):
                raise NotImplementedError
            self._bot = self.load("minigrid.utils.baby_ai_bot").BabyAIBot(self.env.unwrapped)
            self._last = None
        return {"role": "assistant", "content": self.actions[int(self._bot.replan(self._last))]}

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return {"role": "assistant", "content": rng.choice(self.actions)}

    def problem_key(self) -> str:
        """Return the state at the start, of MiniGrid the whole grid."""
        world = self.env.unwrapped
        return f"{self.opening}\n{world.pprint_grid() if hasattr(world, 'pprint_grid') else ''}"

    def _draw(self) -> None:
        """Reset to a start of the task's split; an environment with a single start is the same in both splits."""
        for attempt in range(TRIES):
            self.observation, _ = self.env.reset(seed=(self.task.seed + attempt * STRIDE) % SEEDS)
            self.opening = self.text_of(self.env, self.observation)
            if zlib.crc32(self.problem_key().encode()) % 2 == self.task.seed % 2:
                return

    def _answer(self, reward: float, terminated: bool, truncated: bool, invalid: bool = False) -> Step:
        over = terminated or truncated or self.turn >= self.max_turns
        success = terminated and self.total > self.success_above
        if self.reward == "success":
            reward = float(over and success)
        text = self.text_of(self.env, self.observation)
        if invalid:
            text = f"not an action; there are {', '.join(self.actions)}\n{text}"
        return Step(
            [] if over else [{"role": "user", "content": text}],
            reward,
            done=over,
            success=success if over else None,
            components={"invalid": float(invalid), "return": reward},
            observation_id=self._state_id(),
            truncated=over and not terminated,
        )

    def _state_id(self) -> str:
        world = self.env.unwrapped
        return str(world.hash()) if hasattr(world, "pprint_grid") else plain_text(world, self.observation)

    def _make(self, id: str, arguments: dict[str, Any]) -> Any:
        library = self.load()
        if id.startswith(("MiniGrid", "BabyAI")):
            self.load("minigrid")
            # It prints every layout it rejects; a name in its module shadows the builtin.
            vars(self.load("minigrid.envs.babyai.core.roomgrid_level"))["print"] = lambda *what: None
        if ":" in id:
            module, _, id = id.rpartition(":")
            load_module("id", module)
        if id not in library.registry:
            raise ValueError(f"id: unknown environment {id!r}; see `gymnasium.registry`")
        if "ansi" in _modes(library, id):
            arguments.setdefault("render_mode", "ansi")
        env = library.make(id, **arguments)
        if not isinstance(env.action_space, library.spaces.Discrete) or env.action_space.start != 0:
            raise ValueError(
                f"id: the actions of {id!r} are {env.action_space}; only Discrete from 0 is played"
            )
        return env

    def _names(self, id: str, actions: list[str] | None) -> list[str]:
        count = int(self.env.action_space.n)
        if actions is None:
            actions = next((list(names) for key, names in NAMES.items() if id.startswith(key)), None)
        if actions is None and hasattr(self.env.unwrapped, "actions"):
            actions = [action.name for action in self.env.unwrapped.actions]
        actions = [str(i) for i in range(count)] if actions is None else [name.lower() for name in actions]
        if len(actions) != count or len(set(actions)) != count:
            raise ValueError(f"actions: must be {count} different names, got {actions}")
        return actions

    def _text_of(self, text: str) -> TextOf:
        if text == "auto":
            space = self.env.observation_space
            rendered = "ansi" if self.env.render_mode == "ansi" else "observation"
            views = isinstance(space, self.load().spaces.Dict) and {"mission", "image"} <= set(space)
            text = "minigrid" if views else rendered
        return TEXTS[text] if text in TEXTS else load_object("text", text)


def _modes(library: Any, id: str) -> list[str]:
    """Return the render modes of an environment's class."""
    entry = library.registry[id].entry_point
    made = library.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    return getattr(made, "metadata", {}).get("render_modes", [])
