"""Domains in tau2's shape: an agent with tools and a policy talks to a simulated user, scored by the final state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from asyncrl.env.chat_endpoint import ChatEndpoint
from asyncrl.env.protocol import Action, Step, ToolCall, tool_call_id
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.calls import assistant_message, tool_schema
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.extensions.env_adapters.tau2_domain import (
    STOPS,
    Made,
    answer_of,
    basis_of,
    find_task,
    golden_actions,
    load_domain,
    open_environment,
    part,
    reward_of,
    run,
    tasks_of,
)
from asyncrl.extensions.env_adapters.tau2_user import (
    GUIDELINES,
    GUIDELINES_FOR_TOOLS,
    ChatUser,
    check_options,
    instructions,
)
from asyncrl.types import Message, Task

USER_REQUESTS = 3
"""Of a user played by a model, that a step has time for where each takes its longest: two calls and a message."""


class Tau2(AdapterEnv):
    """Serve a simulated user with tools, in a domain of tau2's shape.

    `domain` is the name of a domain of the installed tau2, or the import path of another one, an object or what makes
    one. It has `get_tasks()`, `get_environment()` with tau2's `get_policy`, `get_tools` (each with `openai_schema`),
    `use_tool`, `get_db_hash` and, where tasks have an `initial_state`, `set_state`. The reward is
    `get_reward(task, environment, messages)`, or without one tau2's rule (`tau2_domain.reward_of`).

    The user is a language model at `user_url` that knows the task's `user_scenario` and has the tools of the
    environment's `get_user_tools`. Without `user_url` it is what the domain's `get_user(task, environment)` returns,
    whose `respond(messages)`, plain or async, returns its message, with ###STOP### in it to end; or None, if the
    agent works alone and its first turn without calls is the last.
    """

    required: ClassVar[tuple[str, ...]] = ("domain",)

    def __init__(
        self,
        task: Task,
        domain: str = "",
        max_turns: int = 30,
        user_url: str = "",
        user_model: str = "policy",
        user_options: dict[str, Any] | None = None,
        user_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(task)
        self.user_s = 0.0
        self.domain = load_domain(domain)
        self.problem = find_task(self.domain, str(task.data.get("task_id", task.id)))
        self.environment = open_environment(self.domain, self.problem)
        self.made: list[Made] = []
        if user_url:
            fields = {"model": user_model, "temperature": 0.0, **check_options(user_options or {})}
            endpoint = ChatEndpoint("tau2", user_url, user_timeout_s)
            self.user = self._chat_user(endpoint, fields)
            self.user_s = USER_REQUESTS * endpoint.longest_s
        elif hasattr(self.domain, "get_user"):
            self.user = self.domain.get_user(self.problem, self.environment)
        else:
            raise ConfigError(
                f"env.config.user_url: domain {domain!r} has no user of its own; give the address of an "
                "OpenAI-compatible endpoint whose model plays it, such as http://127.0.0.1:8000/v1"
            )
        if not hasattr(self.domain, "get_reward"):
            basis_of(self.problem)
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

    def least_step_s(self) -> float:
        return self.user_s

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
            return self._go_on(answers + action.error_messages(), {"malformed": malformed})
        if self.user is None:
            return self._finish(truncated=False)
        before = len(self.made)
        message = self._hear()
        if any(stop in message for stop in STOPS):
            return self._finish(truncated=False)
        components = {"malformed": malformed, "user_calls": float(len(self.made) - before)}
        return self._go_on([{"role": "user", "content": message}], components)

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

    def _chat_user(self, endpoint: ChatEndpoint, fields: dict[str, Any]) -> ChatUser:
        """Return the user that a language model plays, with the tools of the user's side if there are any."""
        tools: list[Any] = []
        # tau2's own environments all have the method, and raise where there are no such tools.
        if hasattr(self.environment, "get_user_tools") and getattr(self.environment, "user_tools", True):
            tools = [_schema(tool) for tool in self.environment.get_user_tools()]
        if hasattr(self.domain, "get_user_guidelines"):
            guidelines = self.domain.get_user_guidelines(bool(tools))
        else:
            guidelines = GUIDELINES + GUIDELINES_FOR_TOOLS if tools else GUIDELINES
        scenario = part(self.problem, "user_scenario") or ""
        system = instructions(guidelines, scenario if isinstance(scenario, dict) else str(scenario))
        return ChatUser(
            endpoint, fields | ({"tools": tools} if tools else {}), system, self.environment, self.made
        )

    def _call(self, call: ToolCall) -> Message:
        text = answer_of(self.environment, self.environment.use_tool, self.names, call.name, call.arguments)
        self.made.append(Made("assistant", call.name, call.arguments))
        return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": text}

    def _go_on(self, messages: list[Message], components: dict[str, float]) -> Step:
        self.messages += messages
        if self.turn >= self.max_turns:
            return self._finish(truncated=True)
        return Step(messages, components=components)

    def _finish(self, truncated: bool) -> Step:
        reward, components = reward_of(
            self.domain, self.problem, self.environment, self.messages, self.made, truncated
        )
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
