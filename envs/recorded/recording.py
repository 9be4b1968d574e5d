"""A recording: what an expert was told and did, turn by turn."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.env.protocol import Action
from asyncrl.env.registry import load_env
from asyncrl.env.scripted import to_action
from asyncrl.types import Message, Task


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of the expert."""

    message: Message
    """The expert's message."""
    accepted: tuple[Action, ...]
    """Actions that count as the expert's, its own first."""
    messages: tuple[Message, ...]
    """What it was then told; nothing after the last turn."""

    def matches(self, action: Action) -> bool:
        """True for an accepted action: the same calls, and the same text but for space around it."""
        return not action.parse_errors and any(_compared(action) == _compared(one) for one in self.accepted)


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole episode."""

    opening: tuple[Message, ...]
    turns: tuple[RecordedTurn, ...]
    tools: tuple[dict[str, Any], ...] = ()


def read_recording(data: Mapping[str, Any]) -> Recording:
    """Return the recording in a task's data. Raises `ValueError` naming what is wrong with it."""
    opening = _messages("opening", data.get("opening"))
    if not opening:
        raise ValueError("opening: must be a list of messages, the first observation, and not be empty")
    turns = data.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError("turns: must be a list of the expert's turns, and not be empty")
    return Recording(
        opening,
        tuple(_turn(f"turns[{number}]", turn) for number, turn in enumerate(turns)),
        tuple(data.get("tools", ())),
    )


def _turn(name: str, turn: Any) -> RecordedTurn:
    if not isinstance(turn, dict) or "action" not in turn:
        raise ValueError(f"{name}: must be an object with an action")
    actions = [_said_in(f"{name}.action", one) for one in (turn["action"], *turn.get("accept", []))]
    messages = _messages(f"{name}.messages", turn.get("messages", []))
    return RecordedTurn(actions[0], tuple(map(to_action, actions)), messages)


def _said_in(name: str, action: Any) -> Message:
    message = {"role": "assistant", "content": action} if isinstance(action, str) else action
    if not isinstance(message, dict) or message.get("role") != "assistant":
        raise ValueError(f"{name}: must be text or an assistant message, got {action!r:.200}")
    return message


def _messages(name: str, messages: Any) -> tuple[Message, ...]:
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise ValueError(f"{name}: must be a list of messages, got {messages!r:.200}")
    return tuple(messages)


async def record(task: Task, config: Mapping[str, Any]) -> Recording:
    """Return the recording of the scripted expert of the environment that the task names."""
    env = load_env(task.env)(task, **config)
    try:
        opening = await _now(env.reset())
        messages, turns = list(opening), []
        while True:
            action = env.oracle(messages)
            step = await _now(env.step(to_action(action)))
            turns.append(RecordedTurn(action, (to_action(action),), tuple(step.messages)))
            if step.done:
                return Recording(tuple(opening), tuple(turns), tuple(env.tools))
            messages += [action, *step.messages]
    finally:
        await _now(env.close())


async def _now(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _compared(action: Action) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    return action.content.strip(), [(call.name, call.arguments) for call in action.tool_calls]
