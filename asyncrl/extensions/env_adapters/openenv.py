"""Environments behind OpenEnv servers, spoken to in OpenEnv's own WebSocket protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.errors import AgentError
from asyncrl.extensions.env_adapters.calls import CallRefused, answer_calls, tool_schema
from asyncrl.extensions.env_adapters.openenv_socket import InvalidAction, OpenEnvSocket
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.import_path import load_object
from asyncrl.types import Message, Task

TEXT_FIELDS = ("text", "prompt", "message", "content", "observation", "output", "echoed_message")
"""Fields of an observation that are tried, in order, for the text shown to the model."""
JSON_ACTION = "json"


class OpenEnv(AdapterEnv):
    """Play an environment behind an OpenEnv server.

    The server is at `url`. A turn becomes the action {`action_field`: text} with the fields of `action` added; with
    `action_field` = "json" the turn itself is the action as JSON; `to_action` is the import path of a function from
    `Action` to the fields where neither fits. `tools` = true asks the server for its tools and makes the model's
    calls one after the other. Of an observation, the field `text_field` is shown; without one the first known text
    field, or else JSON. `reset` and the task's data are sent with every reset, together with the seed. `token_env`
    names an environment variable with a bearer token. Success is a return of at least `success_at`.
    """

    library: ClassVar[str] = "websockets"
    extra: ClassVar[str] = "openenv"
    required: ClassVar[tuple[str, ...]] = ("url",)

    def __init__(
        self,
        task: Task,
        url: str = "",
        action_field: str = "message",
        action: dict[str, Any] | None = None,
        to_action: str = "",
        tools: bool = False,
        text_field: str = "",
        reset: dict[str, Any] | None = None,
        token_env: str = "",
        success_at: float = 1.0,
        max_turns: int = 16,
        timeout_s: float = 30.0,
    ) -> None:
        super().__init__(task)
        self.load("websockets.asyncio.client")
        self.socket = OpenEnvSocket(url, token_env, timeout_s)
        self.action_field, self.action_base = action_field, dict(action or {})
        self.to_action: Callable[[Action], dict[str, Any]] | None = None
        if to_action:
            self.to_action = load_object("to_action", to_action)
        self.ask_tools, self.text_field = tools, text_field
        self.reset_data = {"seed": task.seed, **(reset or {}), **task.data}
        self.success_at, self.max_turns = success_at, max_turns
        self.turn, self.total = 0, 0.0

    async def reset(self) -> list[Message]:
        """Connect and reset; show the first observation."""
        await self.socket.open()
        first = await self.socket.ask("reset", self.reset_data)
        if self.ask_tools:
            listed = await self.socket.ask("step", {"type": "list_tools"})
            self.tools = [  # type: ignore[misc]
                tool_schema(t["name"], t.get("description"), t.get("input_schema") or {"type": "object"})
                for t in listed["observation"]["tools"]
            ]
        return [{"role": "user", "content": self._text(first.get("observation"))}]

    async def step(self, action: Action) -> Step:
        """Send the action; one that the server refuses costs the turn and is reported to the model."""
        self.turn += 1
        if self.ask_tools and (action.tool_calls or action.parse_errors):
            return await self._use_tools(action)
        try:
            answer = await self.socket.ask("step", self._fields(action))
        except (InvalidAction, AgentError) as error:
            return self._answer([{"role": "user", "content": f"error: {error}"}], 0.0, False, invalid=True)
        reward = float(answer.get("reward") or 0.0)
        shown: Message = {"role": "user", "content": self._text(answer.get("observation"))}
        return self._answer([shown], reward, bool(answer.get("done")))

    async def close(self) -> None:
        await self.socket.close()

    async def _use_tools(self, action: Action) -> Step:
        reward, done = 0.0, False

        async def call(name: str, arguments: dict[str, Any]) -> str:
            nonlocal reward, done
            fields = {"type": "call_tool", "tool_name": name, "arguments": arguments}
            try:
                answer = await self.socket.ask("step", fields)
            except InvalidAction as error:
                raise CallRefused(str(error)) from error
            reward, done = reward + float(answer.get("reward") or 0.0), done or bool(answer.get("done"))
            observation = answer.get("observation") or {}
            if observation.get("error"):
                raise CallRefused(_result_text(observation["error"]))
            return _result_text(observation.get("result"))

        names = [tool["function"]["name"] for tool in self.tools]
        messages: list[Message] = []
        # One socket answers one message at a time, and a call may end the episode.
        for made in action.tool_calls:
            messages += await answer_calls(Action("", (made,)), names, call)
            if done:
                break
        messages += await answer_calls(Action("", (), action.parse_errors), names, call)
        return self._answer(messages, reward, done, invalid=bool(action.parse_errors))

    def _fields(self, action: Action) -> dict[str, Any]:
        if self.to_action is not None:
            return self.to_action(action)
        if self.action_field != JSON_ACTION:
            return {**self.action_base, self.action_field: action.content}
        try:
            fields = json.loads(action.content)
        except (ValueError, RecursionError) as error:
            raise AgentError(f"an action must be JSON: {error}") from error
        if not isinstance(fields, dict):
            raise AgentError(f"an action must be a JSON object, got {action.content[:100]!r}")
        return {**self.action_base, **fields}

    def _answer(self, messages: list[Message], reward: float, done: bool, invalid: bool = False) -> Step:
        self.total += reward
        over = done or self.turn >= self.max_turns
        return Step(
            [] if over else messages,
            reward,
            done=over,
            success=self.total >= self.success_at if over else None,
            components={"invalid": float(invalid)},
            truncated=over and not done,
        )

    def _text(self, observation: Any) -> str:
        if not isinstance(observation, dict):
            return str(observation)
        fields = (self.text_field,) if self.text_field else TEXT_FIELDS
        for name in fields:
            if isinstance(observation.get(name), str):
                return str(observation[name])
        return json.dumps({k: v for k, v in observation.items() if k != "metadata"}, sort_keys=True)


def _result_text(result: Any) -> str:
    """Return a tool's result as the model sees it: its text, or JSON."""
    if isinstance(result, dict):
        for name in ("message", "data"):
            if isinstance(result.get(name), str):
                return str(result[name])
        blocks = result.get("content")
        if isinstance(blocks, list) and all(isinstance(b, dict) and "text" in b for b in blocks):
            return "\n".join(b["text"] for b in blocks)
    return result if isinstance(result, str) else json.dumps(result, sort_keys=True)
