"""Function calls to make, compared with those that are right (BFCL: simple, multiple, parallel, irrelevance)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.env.protocol import Action, Env, Step, ToolCall
from asyncrl.types import Message, Task


class Calls(Env):
    """One turn; `task.data` holds `messages`, `tools` (JSON schemas) and `answers`.

    An answer is `{name: {argument: [values that are right]}}`, where "" among the values means that the argument may be
    left out. The calls must be those of the answers, in any order; without answers there must be none.
    """

    max_turns = 1
    blocking = False

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.tools = list(task.data["tools"])  # type: ignore[misc]

    def reset(self) -> list[Message]:
        return list(self.task.data["messages"])

    def step(self, action: Action) -> Step:
        right = not action.parse_errors and same_calls(action.tool_calls, self.task.data["answers"])
        return Step(reward=float(right), done=True, success=right)


def same_calls(calls: Sequence[ToolCall], answers: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if each call is one of the answers, and each answer was called once."""
    left = list(answers)
    for call in calls:
        found = next((one for one in left if _fits(call, one)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _fits(call: ToolCall, answer: Mapping[str, Any]) -> bool:
    allowed = answer.get(call.name)
    if allowed is None or set(call.arguments) - set(allowed):
        return False
    return all(
        _one_of(call.arguments[name], values) if name in call.arguments else "" in values
        for name, values in allowed.items()
    )


def _one_of(value: Any, allowed: Sequence[Any]) -> bool:
    """As BFCL compares: text without regard to case, blanks and punctuation, numbers by value, lists item by item."""
    return any(_same(value, one) for one in allowed)


def _same(value: Any, right: Any) -> bool:
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, str) and isinstance(right, str):
        return _plain(value) == _plain(right)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_same, value, right))
    if isinstance(value, dict) and isinstance(right, dict):
        # Each key of a right object lists the values that are right for it.
        return set(value) <= set(right) and all(
            _one_of(value[key], values) if key in value else "" in values for key, values in right.items()
        )
    return type(value) in (int, float, type(None)) and value == right


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c not in " ,./-_*^'\"")
