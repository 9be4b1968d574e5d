"""OpenEnv's messages, read and written."""

from __future__ import annotations

import json
import math
from typing import Any

from asyncrl.env.host import SessionGone
from asyncrl.env.protocol import Action, ToolCall, tool_call_id
from asyncrl.errors import ConfigError, InputError, UnavailableError
from asyncrl.types import Message, Task

MAX_TASK_INDEX = 1_000_000
"""Tasks are counted up to the one that is asked for."""
KINDS = ("reset", "step", "state", "close")
ACTION_SCHEMA: dict[str, Any] = {
    "title": "Turn",
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "what the assistant says"},
        "content": {"type": "string", "description": "the same, beside tool calls"},
        "tool_calls": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
                "required": ["name"],
            },
        },
        "type": {"type": "string", "enum": ["list_tools", "call_tool"]},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
        "metadata": {"type": "object"},
    },
    "additionalProperties": False,
}
OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "Messages",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "the contents of the new messages"},
        "messages": {"type": "array", "items": {"type": "object"}},
        "tools": {"type": "array", "items": {"type": "object"}},
        "tool_name": {"type": "string"},
        "result": {"type": "string"},
        "metadata": {"type": "object"},
    },
}
STATE_SCHEMA: dict[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer"},
        "done": {"type": "boolean"},
    },
}


class WireError(Exception):
    """A message that violates the protocol. `code` is OpenEnv's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_message(text: str | None) -> tuple[str, dict[str, Any]]:
    """Return a message's type and data. text: None for a message of bytes. Raises `WireError`."""
    if text is None:
        raise WireError("INVALID_JSON", "Invalid JSON: messages are text, got bytes")
    try:
        message = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise WireError("INVALID_JSON", f"Invalid JSON: {error}") from error
    if not isinstance(message, dict) or message.get("type") not in KINDS:
        given = message.get("type") if isinstance(message, dict) else message
        raise WireError("UNKNOWN_TYPE", f"Unknown message type: {given!r:.100}; allowed: {', '.join(KINDS)}")
    data = message.get("data", {})
    if not isinstance(data, dict):
        raise WireError("VALIDATION_ERROR", f"data: must be an object, got {data!r:.100}")
    return message["type"], data


def _finite(text: str) -> float:
    """Return a number that JSON has, as what is answered may quote it. Raises `ValueError`."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.20} is no number")
    return number


def reset_task(data: dict[str, Any], name: str) -> Task | tuple[str, int | None]:
    """Return the task that a reset describes by seed or data, or (split, index) of the one to take.

    The index is None for the next one. Raises `InputError`.
    """
    split, index, seed = data.get("split", "train"), data.get("task_index"), data.get("seed")
    known = {"seed", "episode_id", "split", "task_index", "data"}
    if unknown := set(data) - known:
        raise InputError(f"reset: unknown key {min(unknown)!r}; allowed: {', '.join(sorted(known))}")
    for key, value in (("seed", seed), ("task_index", index)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise InputError(f"{key}: must be an integer from 0, got {value!r:.100}")
    if index is not None and index > MAX_TASK_INDEX:
        raise InputError(f"task_index: must be at most {MAX_TASK_INDEX}, got {index!s:.100}")
    if split not in ("train", "heldout"):
        raise InputError(f"split: must be train or heldout, got {split!r:.100}")
    if not isinstance(data.get("data", {}), dict):
        raise InputError(f"data: must be an object, got {data['data']!r:.100}")
    if seed is None and "data" not in data:
        return split, index
    task_id = str(data.get("episode_id") or f"seed-{seed or 0}")
    return Task(task_id, name, seed or 0, split, data.get("data", {}))


def read_action(data: dict[str, Any]) -> Action | None:
    """Return the action of a step, None for a question about the tools. Raises `InputError`."""
    if unknown := set(data) - set(ACTION_SCHEMA["properties"]):
        raise InputError(
            f"action: unknown key {min(unknown)!r}; allowed: {', '.join(ACTION_SCHEMA['properties'])}"
        )
    if data.get("type") == "list_tools":
        return None
    calls = data.get("tool_calls") or []
    if data.get("type") == "call_tool":
        calls = [{"name": data.get("tool_name"), "arguments": data.get("arguments", {})}]
    content = data.get("message", data.get("content", ""))
    if not isinstance(content, str) or not isinstance(calls, list):
        raise InputError("action: message and content must be text, tool_calls a list")
    return Action(content, tuple(_call(i, call) for i, call in enumerate(calls)))


def _call(index: int, call: Any) -> ToolCall:
    arguments = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(arguments, dict) or not isinstance(call.get("name"), str):
        raise InputError(f"tool_calls.{index}: must be {{name, arguments}}, got {call!r:.100}")
    return ToolCall(tool_call_id(index), call["name"], arguments)


def observation_answer(
    messages: list[Message],
    tools: list[dict[str, Any]],
    reward: float | None,
    done: bool,
    details: dict[str, Any],
    tool_name: str | None = None,
) -> dict[str, Any]:
    """Return the answer to a reset or step; `tool_name` makes it the answer to a `call_tool`."""
    text = "\n".join(str(m.get("content") or "") for m in messages)
    functions = [tool["function"] for tool in tools]
    observation: dict[str, Any] = {
        "text": text,
        "messages": messages,
        "tools": [
            {
                "name": f["name"],
                "description": f.get("description", ""),
                "input_schema": f.get("parameters") or {"type": "object"},
            }
            for f in functions
        ],
        "metadata": details,
    }
    if tool_name is not None:
        observation |= {"tool_name": tool_name, "result": text, "error": None}
    data = {"observation": observation, "reward": reward, "done": done}
    return {"type": "observation", "data": data | ({"metadata": details} if details else {})}


def error_answer(error: Exception) -> dict[str, Any]:
    """Return the error answer, with OpenEnv's code."""
    if isinstance(error, WireError):
        code = error.code
    elif isinstance(error, SessionGone):
        code = "SESSION_ERROR"
    elif isinstance(error, UnavailableError):
        code = "CAPACITY_REACHED"
    elif isinstance(error, InputError | ConfigError):
        code = "VALIDATION_ERROR"
    else:
        code = "EXECUTION_ERROR"
    return {"type": "error", "data": {"message": str(error)[:2000], "code": code}}
