"""Plays episodes with an environment's own scripted policies, or with nonsense, and records what was shown."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import (
    MAIN_AGENT,
    Action,
    Env,
    Step,
    ToolCall,
    secrets_of,
    tool_call_id,
)
from asyncrl.errors import InputError
from asyncrl.images import is_image, without_images
from asyncrl.types import Message, Task

STEP_TIMEOUT_S = 60.0
"""Of a step, where its environment needs no longer."""
ROLES = ("system", "user", "tool")
WRONG_VALUES: tuple[Any, ...] = (None, -1, "\0 nonsense \N{SNOWMAN}", "\ud800", ["x"], {"x": 1}, 10**30)


@dataclass(slots=True)
class Episode:
    """The record of one scripted episode."""

    reward: float = 0.0
    """What the main agent has earned."""
    observations: list[str] = field(default_factory=list)
    """Everything the policy was shown before the last step, as JSON."""
    leaked: list[str] = field(default_factory=list)
    """Secrets found among them."""
    malformed: list[str] = field(default_factory=list)
    """Messages that no chat template can render or no service can send."""


def to_action(message: Message) -> Action:
    """Return the action of an assistant message."""
    calls = tuple(
        ToolCall(
            str(call.get("id", tool_call_id(i))),
            call["function"]["name"],
            dict(call["function"]["arguments"]),
        )
        for i, call in enumerate(message.get("tool_calls") or ())
    )
    return Action(content=message.get("content") or "", tool_calls=calls)


async def play(task: Task, config: dict[str, Any], expert: bool, rng: random.Random) -> Episode:
    """Play a task with the oracle or the random policy. Raises `NotImplementedError` without one."""
    host = EnvHost()
    session = await host.open(task, config)
    env: Env = session.env
    messages, episode, agent = list(session.messages), Episode(), MAIN_AGENT
    shown = [*messages, *env.tools]
    timeout_s = session.step_limit_s(STEP_TIMEOUT_S)
    try:
        for turn in range(env.max_turns):
            message = env.oracle(messages) if expert else env.random_policy(messages, rng)
            step: Step = await host.step(session.id, turn, to_action(message), timeout_s)
            episode.reward += step.reward if agent == MAIN_AGENT else step.rewards.get(MAIN_AGENT, 0.0)
            agent = agent if step.agent is None else step.agent
            episode.malformed += filter(None, map(what_is_malformed, step.messages))
            if step.done:
                break
            messages += [message, *step.messages]
            shown += step.messages
    finally:
        await host.close_all()
    episode.malformed += filter(None, map(what_is_malformed, session.messages))
    episode.observations = [json.dumps(item, sort_keys=True, default=repr) for item in shown]
    texts = [str(item.get("content", item)) for item in shown]
    episode.leaked = [secret for secret in secrets_of(env) if any(secret in text for text in texts)]
    return episode


async def blunder(task: Task, config: dict[str, Any]) -> tuple[int, list[str]]:
    """Take every kind of nonsense action once, each in its own session.

    Return their number and what went wrong: an error instead of an answer, or a full reward.
    """
    wrong: list[str] = []
    host = EnvHost()
    session = await host.open(task, config)
    # An adapter's tools belong to others, and random calls may have effects outside.
    foreign = getattr(session.env, "oracle_optional", False)
    actions = list(nonsense([] if foreign else session.env.tools))
    await host.close_all()
    for what, action in actions:
        host = EnvHost()
        session = await host.open(task, config)
        try:
            step = await host.step(session.id, 0, action, session.step_limit_s(STEP_TIMEOUT_S))
            wrong += [f"{what}: {text}" for text in filter(None, map(what_is_malformed, step.messages))]
            if step.reward >= 1 and step.success:
                wrong.append(f"{what}: earned {step.reward:g}")
        except Exception as error:
            wrong.append(f"{what}: {error}")
        finally:
            await host.close_all()
    return len(actions), wrong


def nonsense(tools: list[dict[str, Any]]) -> Iterator[tuple[str, Action]]:
    """Yield actions that make no sense: (what it is, the action)."""
    yield "an empty answer", Action("")
    yield "an odd answer", Action("\0 \N{SNOWMAN} {[(<answer></answer>" + "x" * 10_000)
    yield "a malformed call", Action("", (), ("not JSON",))
    yield "an unknown tool", Action("", (ToolCall("call-0", "no_such_tool", {}),))
    for tool in tools:
        function = tool["function"]
        name, properties = function["name"], function.get("parameters", {}).get("properties", {})
        yield f"{name} with an unknown argument", Action("", (ToolCall("call-0", name, {"no_such": 1}),))
        if properties:
            yield f"{name} without arguments", Action("", (ToolCall("call-0", name, {}),))
        for i, value in enumerate(WRONG_VALUES if properties else ()):
            arguments = dict.fromkeys(properties, value)
            yield f"{name} with {value!r:.30}", Action("", (ToolCall(tool_call_id(i), name, arguments),))


def what_is_malformed(message: Message) -> str:
    """Return why a message cannot be shown to a policy, or an empty text."""
    if message.get("role") not in ROLES:
        return f"role must be one of {', '.join(ROLES)}, got {message.get('role')!r}"
    content = message.get("content")
    if not isinstance(content, str | list):
        return f"content must be a text or a list of parts, got {content!r:.60}"
    for part in content if isinstance(content, list) else ():
        if not is_image(part) and not (isinstance(part, dict) and isinstance(part.get("text"), str)):
            return f"a part of the content must be a text or an image, got {part!r:.60}"
    try:
        without_images([message])
    except InputError as error:
        return str(error)
    try:
        # Not as escapes: a tokenizer refuses half of a surrogate pair.
        json.dumps(message, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        return str(error)
    return ""
