"""Environments of tinker-cookbook, Tinker's collection of recipes, played in a Python of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from asyncrl.env.protocol import MAIN_AGENT, Action, Step
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.env_adapters.calls import row_data, same_message
from asyncrl.extensions.env_adapters.elsewhere import EpisodeElsewhere, ask_helper, helper_process
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.helper_process import HelperProcess
from asyncrl.types import Message, Task

AT_ONCE = 256
"""Tasks that are listed together."""
ROLES = frozenset({"system", "user", "assistant", "tool"})


class TinkerCookbook(AdapterEnv):
    """Play the environments of a data set of tinker-cookbook's.

    `dataset` is the import path of an `RLDatasetBuilder`, or of a function that returns an `RLDataset`; each of its
    groups is a task, played in our groups. It may also be a function of a `seed` that returns an `EnvGroupBuilder` or
    an `Env`. `args` are its arguments; renderer and tokenizer are given to it where it has parameters for them. The
    held-out split is the second data set of the builder; without one every other row, or odd seeds. `python` is an
    interpreter with tinker-cookbook. Metrics become components; success is a reward of at least `success_at`.
    """

    required: ClassVar[tuple[str, ...]] = ("dataset", "python")

    def __init__(
        self,
        task: Task,
        dataset: str = "",
        python: str = "",
        args: dict[str, Any] | None = None,
        max_turns: int = 16,
        success_at: float = 1.0,
    ) -> None:
        super().__init__(task)
        if not dataset or not python:
            raise ValueError(
                "dataset and python: must name a data set, and an interpreter with tinker-cookbook"
            )
        self.max_turns, self.success_at, self.named = max_turns, success_at, named(dataset)
        self.source = _source(task.split, dataset, args)
        self.episode = EpisodeElsewhere(helper_of(python), self.named, "dataset")
        self.shown: list[Message] = []
        """The conversation as the environment has it."""
        self.agent, self.conversations = MAIN_AGENT, 1
        self.credited = {MAIN_AGENT: 0.0}
        """Rewards by conversation."""

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield one task per row of the data set that belongs to the split; endless for seeds."""
        for key in cls.required:
            if not config.get(key):
                raise ConfigError(f"env.config.{key}: environment {env!r} needs it")
        helper, who = helper_of(config["python"]), named(config["dataset"])
        source = _source(split, config["dataset"], config.get("args"))
        listed = 0
        while True:
            asked = {"tasks": source, "from": listed, "count": AT_ONCE}
            found = ask_helper(helper, asked, who, "dataset")
            if not found["rows"]:
                return
            first, stride = (int(split == "heldout"), 2) if found["divided"] else (0, 1)
            for row in range(listed, listed + len(found["rows"])):
                if row % stride == first:
                    data = row_data(row, split, own=not found["divided"])
                    yield Task(f"{split}-{row}", env, seed=row, split=split, data=data)
            listed += len(found["rows"])

    async def reset(self) -> list[Message]:
        """Make the environment; show its first prompt."""
        opened = await self.episode.open(self.source, self.task.data.get("row", self.task.seed))
        step = self._show(opened["asked"])
        self.tools = step.tools or []  # type: ignore[misc]
        return step.messages

    async def step(self, action: Action) -> Step:
        """Take a turn, and show what follows."""
        calls = [
            {"id": call.id, "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
            for call in action.tool_calls
        ]
        turn = {"content": action.content, "calls": calls, "errors": list(action.parse_errors)}
        acted = self.agent
        reply = await self.episode.step(turn)
        self.credited[acted] += reply["reward"]
        components = {name: float(value) for name, value in reply["metrics"].items()}
        if "asked" in reply:
            said: Message = {"role": "assistant", "content": action.content, "tool_calls": calls}
            step = self._show(reply["asked"], said)
            return Step(
                step.messages, reply["reward"], components=components, agent=step.agent, tools=step.tools
            )
        total = sum(self.credited.values())
        # The cookbook gives what the episode earned to every one of its conversations.
        missing = {agent: total - own for agent, own in self.credited.items()}
        reward = reply["reward"] + missing.pop(acted)
        success = total >= self.success_at
        return Step([], reward, True, success, components, truncated=reply["truncated"], rewards=missing)

    async def close(self) -> None:
        """End the episode where it is still being played."""
        await self.episode.close()

    def _show(self, asked: dict[str, Any], said: Message | None = None) -> Step:
        """Return what is new of a prompt: the rest of the conversation that it continues, or a new one.

        said: the policy's turn.
        """
        messages: list[Message] = asked["messages"]
        known = [*self.shown, said] if said is not None else []
        # Some environments keep the policy's turn under a role of their own.
        same = [same_message(message)[1:] for message in messages]
        continues = known and same[: len(known)] == [same_message(message)[1:] for message in known]
        self.shown = list(messages)
        new = messages[len(known) :] if continues else messages
        if odd := {message["role"] for message in new} - ROLES:
            raise EnvironmentFailure(
                f"{self.named}: role {min(odd)!r} of a message is none that chat templates have"
            )
        if not new:
            raise EnvironmentFailure(f"{self.named} asks for another turn without a message")
        if continues or said is None:
            return Step(new, tools=asked["tools"])
        self.conversations += 1
        self.agent = f"prompt/{self.conversations}"
        self.credited[self.agent] = 0.0
        return Step(new, agent=self.agent, tools=asked["tools"])


def helper_of(python: str) -> HelperProcess:
    """Return the process with tinker-cookbook in this interpreter."""
    return helper_process(python, "cookbook_episodes.py", "tinker-cookbook")


def named(dataset: str) -> str:
    """Return how errors name the environment."""
    return f"tinker-cookbook's {dataset!r}"


def _source(split: str, dataset: str, args: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the helper process makes the data set from."""
    return {"dataset": dataset, "args": args or {}, "split": split}
