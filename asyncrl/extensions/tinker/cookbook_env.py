"""Our environments in the training loops of Tinker's cookbook.

`AsyncrlDatasetBuilder` is what its `rl.train.Config.dataset_builder` takes. Sessions run in the process of the loop, as
they do in a rollout worker. Needs the package tinker-cookbook beside asyncrl.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import chz
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.types import Env as CookbookEnv
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

from asyncrl.env.host import EnvHost, HostedSession
from asyncrl.env.protocol import MAIN_AGENT, Action, ToolCall, tool_call_id
from asyncrl.env.registry import load_env
from asyncrl.errors import EnvironmentFailure
from asyncrl.types import Task

MOST_SESSIONS = 4096
STEP_TIMEOUT_S = 300.0


@functools.cache
def _host() -> EnvHost:
    """Return this process's sessions. One ends when its episode does, however long the model takes."""
    return EnvHost(MOST_SESSIONS, lease_s=math.inf)


class Conversation(MessageEnv):  # type: ignore[misc]
    """One episode of an environment of ours, in messages.

    What the environment raises ends the rollout as an error of the loop's; it is no reward.
    """

    def __init__(self, task: Task, config: dict[str, Any], renderer: Any) -> None:
        self.task, self.config, self.renderer = task, config, renderer
        self.example_id = task.id
        self.messages: list[Any] = []
        self.turns = 0
        self._session: HostedSession | None = None

    async def initial_observation(self) -> list[Any]:
        """Open a session; return what it says first, with its tools where it has some."""
        self._session = await _host().open(self.task, self.config)
        opened = self._session.opened
        tools = [tool.get("function", tool) for tool in opened.tools]
        # A renderer puts tools into the system prompt, of which there must be one.
        system = [one for one in opened.messages if one["role"] == "system"]
        rest = [one for one in opened.messages if one["role"] != "system"]
        text = "\n\n".join(str(one["content"]) for one in system)
        if tools:
            system = self.renderer.create_conversation_prefix_with_tools(tools, text)
        self.messages = [*system, *rest]
        return list(self.messages)

    async def step(self, message: Any) -> MessageStepResult:
        """Take the model's turn."""
        assert self._session is not None
        step = await _host().step(
            self._session.id,
            self.turns,
            action_of(message),
            self._session.step_limit_s(STEP_TIMEOUT_S),
        )
        self.turns += 1
        if not step.done and step.agent not in (None, MAIN_AGENT):
            raise EnvironmentFailure(
                f"environment {self.task.env!r} plays several agents ({step.agent!r}), and this loop plays one"
            )
        self.messages += [message, *step.messages]
        done = step.done or self.turns >= self._session.opened.max_turns
        metrics = {f"component/{name}": value for name, value in step.components.items()}
        if done:
            metrics["success"] = float(bool(step.success))
            await self.close()
        return MessageStepResult(step.reward, done, list(self.messages), metrics)

    async def close(self) -> None:
        """End the session; ending it again does nothing."""
        session, self._session = self._session, None
        if session is not None:
            await _host().close(session.id)


def action_of(message: Any) -> Action:
    """Return a parsed turn of the cookbook's as ours."""
    content = message["content"]
    parts = [] if isinstance(content, str) else content
    text = (
        content
        if isinstance(content, str)
        else "".join(one["text"] for one in parts if one["type"] == "text")
    )
    thought = "".join(one["thinking"] for one in parts if one["type"] == "thinking")
    calls = tuple(
        ToolCall(tool_call_id(number), call.function.name, json.loads(call.function.arguments or "{}"))
        for number, call in enumerate(message.get("tool_calls", ()))
    )
    wrong = tuple(one.error for one in message.get("unparsed_tool_calls", ()))
    return Action(text, calls, wrong, thought)


@dataclass(frozen=True)
class Group(EnvGroupBuilder):  # type: ignore[misc]
    """Episodes of one task."""

    task: Task
    config: dict[str, Any]
    size: int
    model_name: str
    renderer_name: str
    playing: list[Conversation] = field(default_factory=list, compare=False)

    async def make_envs(self) -> Sequence[CookbookEnv]:
        """Return the episodes. A turn that the renderer cannot read ends one with reward 0."""
        await _host().start()
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name))
        self.playing.extend(Conversation(self.task, self.config, renderer) for _ in range(self.size))
        return [
            EnvFromMessageEnv(renderer, one, failed_parse_reward=0.0, context_overflow_reward=0.0)
            for one in self.playing
        ]

    async def cleanup(self) -> None:
        """End the sessions that are left of episodes which were cut."""
        await asyncio.gather(*(one.close() for one in self.playing))
        self.playing.clear()

    def logging_tags(self) -> list[str]:
        """Return the environment's name."""
        return [self.task.env]


@dataclass(frozen=True)
class Tasks(RLDataset):  # type: ignore[misc]
    """Groups of an environment's tasks, in its order."""

    groups: Sequence[Group]
    groups_per_batch: int

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        start = index * self.groups_per_batch
        return self.groups[start : start + self.groups_per_batch]

    def __len__(self) -> int:
        return math.ceil(len(self.groups) / self.groups_per_batch)


@chz.chz
class AsyncrlDatasetBuilder(RLDatasetBuilder):  # type: ignore[misc]
    """An environment of ours as a data set of the cookbook's.

    env: its name or import path. config: its settings, as JSON. batches: of the training tasks; heldout: tasks of the
    held-out split, each played once.
    """

    env: str
    groups_per_batch: int
    group_size: int
    batches: int
    model_name_for_tokenizer: str
    renderer_name: str
    config: str = "{}"
    heldout: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Return the training and the held-out tasks. Raises `ConfigError` for an unknown environment."""
        train = Tasks(
            self._groups("train", self.groups_per_batch * self.batches, self.group_size),
            self.groups_per_batch,
        )
        if not self.heldout:
            return train, None
        return train, Tasks(self._groups("heldout", self.heldout, 1), self.heldout)

    def _groups(self, split: str, count: int, size: int) -> list[Group]:
        config = json.loads(self.config)
        tasks = load_env(self.env).tasks(split, self.env, **config)
        return [
            Group(task, config, size, self.model_name_for_tokenizer, self.renderer_name)
            for task in itertools.islice(tasks, count)
        ]
