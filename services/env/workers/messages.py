"""What the service and its workers say to each other.

    to a worker     [id, operation, session, arguments]
    to the service  [id, result] or [id, None, {"type", "message"}]

Operations are open, step, close, ping and stop. An answer to a ping is the worker's count of overrun calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.env.hosting.runtime import Opened
from asyncrl.env.protocol import Action, Step, ToolCall
from asyncrl.errors import (
    AgentError,
    AsyncRLError,
    ConfigError,
    DeadlineError,
    EnvironmentFailure,
    InfrastructureError,
    InputError,
    UnavailableError,
)

ERRORS: dict[str, type[AsyncRLError]] = {
    kind.__name__: kind
    for kind in (
        AgentError, ConfigError, DeadlineError, EnvironmentFailure, InfrastructureError, InputError, UnavailableError
    )
}  # fmt: skip


def action_to_map(action: Action) -> dict[str, Any]:
    return {
        "content": action.content,
        "tool_calls": [[call.id, call.name, call.arguments] for call in action.tool_calls],
        "parse_errors": list(action.parse_errors),
    }


def action_from_map(raw: Mapping[str, Any]) -> Action:
    calls = tuple(ToolCall(*call) for call in raw["tool_calls"])
    return Action(raw["content"], calls, tuple(raw["parse_errors"]))


def step_to_map(step: Step) -> dict[str, Any]:
    """The fields of a step, in a form for msgpack and JSON."""
    return {
        "messages": step.messages,
        "reward": step.reward,
        "done": step.done,
        "success": step.success,
        "components": step.components,
        "observation_id": step.observation_id,
        "matches": step.matches,
        "truncated": step.truncated,
        "agent": step.agent,
        "tools": step.tools,
        "rewards": step.rewards,
        "extracted": step.extracted,
        "ahead": step.ahead,
    }


def opened_to_map(opened: Opened) -> dict[str, Any]:
    return {
        "messages": opened.messages,
        "tools": opened.tools,
        "max_turns": opened.max_turns,
        "least_step_s": opened.least_step_s,
    }


def error_to_map(error: Exception) -> dict[str, str]:
    """Name the nearest class both ends know; a bug in the worker is infrastructure."""
    names = (kind.__name__ for kind in type(error).__mro__)
    name = next((name for name in names if name in ERRORS), "")
    if not name:
        return {
            "type": "InfrastructureError",
            "message": f"environment worker: {type(error).__name__}: {error}",
        }
    return {"type": name, "message": str(error)}


def error_from_map(raw: Mapping[str, str]) -> AsyncRLError:
    return ERRORS.get(raw["type"], InfrastructureError)(raw["message"])
