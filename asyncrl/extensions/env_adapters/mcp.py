"""Tools of MCP servers: the model calls them until it answers, and a user's function scores the episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.calls import answer_calls, assistant_message
from asyncrl.extensions.env_adapters.mcp_link import McpLink
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.import_path import load_object
from asyncrl.types import Message, Task

CUT = "\n[...]"


@dataclass(slots=True)
class McpEpisode:
    """The finished episode, as a reward function gets it."""

    task: Task
    messages: list[Message]
    """The whole conversation, the final answer included."""
    answer: str | None
    """The turn without tool calls that ended it; None when the turns ran out."""
    call: Callable[..., Any] = field(repr=False)
    """`await call(name, arguments)` calls a tool on the final state and returns the text a model would see."""


class McpTools(AdapterEnv):
    """Answer with the help of MCP servers' tools.

    `servers` is one server or a table of them by name. A server is the import path of a server object, or of a
    function that makes one for each episode; a URL (streamable HTTP), or {url, token_env}; or {command, args, env,
    cwd} for a process on stdio. `reward` is the import path of a function, plain or async, from `McpEpisode` to a
    number or (number, components). The prompt is the task's `data["prompt"]`; `task_list` is the import path of a
    function from a split to such data, where no task file is given. `only` limits the tools offered. `oracle` is
    the import path of a function (messages, task) -> assistant message, if there is one.
    """

    library: ClassVar[str] = "mcp"
    extra: ClassVar[str] = "mcp"
    required: ClassVar[tuple[str, ...]] = ("servers", "reward")

    def __init__(
        self,
        task: Task,
        servers: Any = None,
        reward: str = "",
        task_list: str = "",
        system: str = "",
        only: list[str] | None = None,
        oracle: str = "",
        max_turns: int = 8,
        call_timeout_s: float = 20.0,
        max_characters: int = 4000,
    ) -> None:
        super().__init__(task)
        self.load()
        if not servers:
            raise ValueError("servers: must name at least one MCP server")
        if not isinstance(task.data.get("prompt"), str):
            raise ValueError(
                f"task {task.id!r}: data must have a text 'prompt'; give a task file or task_list"
            )
        tables = isinstance(servers, dict) and not {"command", "url"} & set(servers)
        self.link = McpLink(servers if tables else {"server": servers}, call_timeout_s)
        self.reward = load_object("reward", reward)
        self.expert = load_object("oracle", oracle) if oracle else None
        self.system, self.only = system, only
        self.max_turns, self.max_characters = max_turns, max_characters
        self.turn = 0
        self.messages: list[Message] = []

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield the tasks of `task_list`. Raises `ConfigError` where it is not set."""
        if not config.get("task_list"):
            raise ConfigError(f"env.config.task_list: environment {env!r} needs it, or a task file")
        for i, data in enumerate(load_object("task_list", config["task_list"])(split)):
            yield Task(f"{split}-{i}", env, seed=i, split=split, data=data)

    async def reset(self) -> list[Message]:
        """Connect, list the tools and give the prompt."""
        await self.link.open()
        offered = self.only if self.only is not None else list(self.link.tools)
        if unknown := set(offered) - set(self.link.tools):
            raise ConfigError(f"only: no tool {min(unknown)!r}; there are {', '.join(self.link.tools)}")
        self.tools = [self.link.tools[name] for name in offered]  # type: ignore[misc]
        if self.system:
            self.messages.append({"role": "system", "content": self.system})
        self.messages.append({"role": "user", "content": self.task.data["prompt"]})
        return list(self.messages)

    async def step(self, action: Action) -> Step:
        """Make the calls concurrently; a turn without calls is the answer and ends the episode."""
        self.turn += 1
        self.messages.append(assistant_message(action))
        malformed = float(len(action.parse_errors))
        if not action.tool_calls and not action.parse_errors:
            return await self._finish(action.content, malformed)
        names = [tool["function"]["name"] for tool in self.tools]
        answers = await answer_calls(action, names, self._call)
        self.messages += answers
        if self.turn >= self.max_turns:
            return await self._finish(None, malformed)
        failed = sum(m["content"].startswith("error: ") for m in answers) - malformed
        return Step(answers, components={"malformed": malformed, "failed_calls": failed})

    async def close(self) -> None:
        await self.link.close()

    def oracle(self, messages: list[Message]) -> Message:
        if self.expert is None:
            raise NotImplementedError
        return self.expert(messages, self.task)

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        result = await self.link.call(name, arguments)
        text = _text(result)
        if len(text) > self.max_characters:
            text = text[: self.max_characters] + CUT
        return f"error: {text}" if result.is_error else text

    async def _finish(self, answer: str | None, malformed: float) -> Step:
        scored = self.reward(McpEpisode(self.task, self.messages, answer, self._call))
        scored = await scored if inspect.isawaitable(scored) else scored
        reward, components = scored if isinstance(scored, tuple) else (scored, {})
        return Step(
            reward=float(reward),
            done=True,
            success=float(reward) >= 1.0,
            components={"malformed": malformed, **components},
            truncated=answer is None,
        )


def _text(result: Any) -> str:
    """Return a tool's result as the model sees it; content other than text is only named."""
    parts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
    return "\n".join(parts) or str(result.structured_content or "")
