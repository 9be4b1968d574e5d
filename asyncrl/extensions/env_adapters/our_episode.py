"""One episode of an environment of ours, for a loop of another library that speaks OpenAI's chat messages.

It needs no more of asyncrl than its package without what that depends on: `pip install --no-deps asyncrl`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from asyncrl.env.host import EnvHost, HostedSession
from asyncrl.env.protocol import MAIN_AGENT, Action, ToolCall
from asyncrl.env.registry import load_env
from asyncrl.errors import EnvironmentFailure
from asyncrl.types import Message, Task

STEP_TIMEOUT_S = 300.0


def tasks_of(env: str, config: Mapping[str, Any], split: str, count: int) -> list[Task]:
    """Return the first `count` tasks of a split. Raises `ConfigError` for an unknown environment."""
    return list(itertools.islice(load_env(env).tasks(split, env, **config), count))


class OurEpisode:
    """Plays a task in this process, on the event loop that opens it.

    What the environment raises is raised: an `EpisodeError` by whose fault it is. Only one agent can be played.
    """

    def __init__(self, task: Task, config: Mapping[str, Any]) -> None:
        self.task, self.config = task, dict(config)
        self.tools: list[dict[str, Any]] = []
        self.reward, self.turns = 0.0, 0
        self.done = self.truncated = False
        self.success: bool | None = None
        self.components: Counter[str] = Counter()
        self._host = EnvHost(1, lease_s=math.inf)
        self._session: HostedSession | None = None

    async def open(self) -> list[Message]:
        """Return the opening messages; `tools` are those offered."""
        self._session = await self._host.open(self.task, self.config)
        self.tools = list(self._session.opened.tools)
        return list(self._session.messages)

    async def step(self, message: Mapping[str, Any]) -> list[Message]:
        """Take the model's message; return what the environment answers. Sets `done` with the last one."""
        assert self._session is not None
        action = action_of(message)
        step = await self._host.step(
            self._session.id, self.turns, action, self._session.step_limit_s(STEP_TIMEOUT_S)
        )
        self.turns += 1
        if not step.done and step.agent not in (None, MAIN_AGENT):
            raise EnvironmentFailure(
                f"environment {self.task.env!r} plays several agents ({step.agent!r}), and this loop plays one"
            )
        self.reward += step.reward
        self.components.update(step.components)
        if step.done:
            self.done, self.truncated, self.success = True, step.truncated, step.success
        elif self.turns >= self._session.opened.max_turns:
            self.done = self.truncated = True
        return _answers(step.messages, action, message)

    def metrics(self) -> dict[str, float]:
        """Return success and the components of the reward."""
        return {"success": float(bool(self.success)), **self.components}

    async def close(self) -> None:
        """End the session; ending it again does nothing."""
        await self._host.close_all()


def action_of(message: Mapping[str, Any]) -> Action:
    """Return an assistant message in OpenAI's form as a turn."""
    calls, wrong = [], []
    for call in message.get("tool_calls") or ():
        name, text = call["function"]["name"], call["function"]["arguments"] or "{}"
        try:
            arguments = json.loads(text)
        except ValueError as error:
            wrong.append(f"arguments of {name} are not JSON: {error}")
            continue
        if isinstance(arguments, dict):
            calls.append(ToolCall(call["id"], name, arguments))
        else:
            wrong.append(f"arguments of {name} are no object")
    return Action(message.get("content") or "", tuple(calls), tuple(wrong))


def _answers(messages: list[Message], action: Action, turn: Mapping[str, Any]) -> list[Message]:
    """Return the environment's messages, answers to malformed calls with the ids that these calls have in `turn`."""
    good = {call.id for call in action.tool_calls}
    bad = [call["id"] for call in turn.get("tool_calls") or () if call["id"] not in good]
    ids = dict(zip(action.call_ids()[len(action.tool_calls) :], bad, strict=False))
    return [
        {**one, "tool_call_id": ids.get(one["tool_call_id"], one["tool_call_id"])}
        if one.get("tool_call_id")
        else one
        for one in messages
    ]
