"""Domains in tau2's shape: an agent with tools and a policy talks to a simulated user, scored by the final state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from asyncrl.env.adapters.calls import assistant_message, tool_schema
from asyncrl.env.adapters.requirements import AdapterEnv
from asyncrl.env.adapters.tau2_domain import (
    STOPS,
    as_text,
    find_task,
    golden_actions,
    load_domain,
    open_environment,
    part,
    reward_of,
    run,
    tasks_of,
)
from asyncrl.env.protocol import Action, Step, ToolCall, tool_call_id
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task


class Tau2(AdapterEnv):
    """Serve a simulated user with tools, in a domain of tau2's shape.

    `domain` is the import path of the domain, an object or what makes one. It has `get_tasks()`,
    `get_environment()` with tau2's `get_policy`, `get_tools` (each with `openai_schema`), `use_tool`, `get_db_hash`
    and, where tasks have an `initial_state`, `set_state`; `get_user(task, environment)` returns the simulated user,
    whose `respond(messages)`, plain or async, returns its message, with ###STOP### in it to end; or None, if the
    agent works alone and its first turn without calls is the last. The reward is `get_reward(task, environment,
    messages)`, or without one tau2's rule on the golden actions.
    """

    required: ClassVar[tuple[str, ...]] = ("domain",)

    def __init__(self, task: Task, domain: str = "", max_turns: int = 30) -> None:
        super().__init__(task)
        self.domain = load_domain(domain)
        self.problem = find_task(self.domain, str(task.data.get("task_id", task.id)))
        self.environment = open_environment(self.domain, self.problem)
        self.user = self.domain.get_user(self.problem, self.environment)
        self.max_turns = max_turns
        self.turn = self.calls = 0
        self.messages: list[Message] = []
        self.names: list[str] = []

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield the domain's tasks of a split."""
        if not config.get("domain"):
            raise ConfigError(f"env.config.domain: environment {env!r} needs it")
        for index, task in enumerate(tasks_of(load_domain(config["domain"]), split)):
            task_id = str(part(task, "id"))
            yield Task(f"{split}-{task_id}", env, seed=index, split=split, data={"task_id": task_id})

    def reset(self) -> list[Message]:
        """Return the policy and the user's first message, or the task's ticket without a user."""
        self.tools = [_schema(tool) for tool in self.environment.get_tools()]  # type: ignore[misc]
        self.names = [tool["function"]["name"] for tool in self.tools]
        first = str(part(self.problem, "ticket") or "") if self.user is None else self._hear()
        self.messages = [
            {"role": "system", "content": self.environment.get_policy()},
            {"role": "user", "content": first},
        ]
        return list(self.messages)

    def step(self, action: Action) -> Step:
        """Make the calls in order, since they change one state; a turn without calls goes to the user."""
        self.turn += 1
        self.messages.append(assistant_message(action))
        malformed = float(len(action.parse_errors))
        if action.tool_calls or action.parse_errors:
            self.calls += len(action.tool_calls)
            answers = [self._call(call) for call in action.tool_calls]
            return self._go_on(answers + action.error_messages(), malformed)
        if self.user is None:
            return self._finish(truncated=False)
        said = self._hear()
        if any(stop in said for stop in STOPS):
            return self._finish(truncated=False)
        return self._go_on([{"role": "user", "content": said}], malformed)

    def oracle(self, messages: list[Message]) -> Message:
        """Make the golden calls, then communicate the required information. Raises `NotImplementedError` without
        golden calls."""
        actions = [a for a in golden_actions(self.problem) if part(a, "requestor") != "user"]
        info = part(part(self.problem, "evaluation_criteria"), "communicate_info") or []
        if not actions and not info:
            raise NotImplementedError
        if self.calls == len(actions):
            return {"role": "assistant", "content": " ".join(map(str, info)) or "done"}
        action = actions[self.calls]
        function = {"name": part(action, "name"), "arguments": part(action, "arguments") or {}}
        call = {"type": "function", "id": tool_call_id(self.calls), "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    def _hear(self) -> str:
        return str(run(self.user.respond(list(self.messages))))

    def _call(self, call: ToolCall) -> Message:
        if call.name not in self.names:
            text = f"error: no tool {call.name!r}; there are {', '.join(self.names) or 'none'}"
        else:
            try:
                text = as_text(self.environment.use_tool(call.name, **call.arguments))
            except Exception as error:
                # As in tau2, a tool's exception is an answer to the agent.
                text = f"error: {error}"
        return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text}

    def _go_on(self, messages: list[Message], malformed: float) -> Step:
        self.messages += messages
        if self.turn >= self.max_turns:
            return self._finish(truncated=True)
        return Step(messages, components={"malformed": malformed})

    def _finish(self, truncated: bool) -> Step:
        reward, components = reward_of(self.domain, self.problem, self.environment, self.messages)
        return Step(
            reward=float(reward), done=True, success=reward >= 1.0, components=components, truncated=truncated
        )


def _schema(tool: Any) -> dict[str, Any]:
    """Return a tool in the form chat templates accept, from tau2's `openai_schema` or a plain schema."""
    if isinstance(tool, dict):
        return tool
    schema = part(tool, "openai_schema")
    if schema is not None:
        return dict(schema)
    return tool_schema(tool.name, part(tool, "description"), part(tool, "parameters") or {"type": "object"})
