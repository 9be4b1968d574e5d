"""The interface of a tau2-style domain, by the names its parts have there; no package is imported."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Iterator
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.import_path import load_object
from asyncrl.types import Message

STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Any of these in its reply means that the user ends the conversation."""
NEEDED = ("get_tasks", "get_environment", "get_user")
SPLITS = {"train": "train", "heldout": "test"}
"""Our names of the splits, and those of `get_tasks_split`."""


@functools.cache
def load_domain(path: str) -> Any:
    """Return the domain an import path names, made by calling it where it is a function or class."""
    found = load_object("domain", path)
    made = isinstance(found, type) or (callable(found) and not hasattr(found, "get_tasks"))
    domain = found() if made else found
    if missing := [name for name in NEEDED if not callable(getattr(domain, name, None))]:
        raise ConfigError(f"domain: {path!r} has no {', '.join(missing)}")
    return domain


def tasks_of(domain: Any, split: str) -> Iterator[Any]:
    """Yield a split's tasks: those of `get_tasks_split`, or else even ones for train and odd ones for held-out."""
    tasks = list(domain.get_tasks())
    if not hasattr(domain, "get_tasks_split"):
        yield from tasks[1 if split == "heldout" else 0 :: 2]
        return
    wanted = set(map(str, domain.get_tasks_split()[SPLITS[split]]))
    yield from (task for task in tasks if str(part(task, "id")) in wanted)


def find_task(domain: Any, task_id: str) -> Any:
    """Return the task of an id. Raises `ValueError`."""
    for task in domain.get_tasks():
        if str(part(task, "id")) == task_id:
            return task
    raise ValueError(f"task_id: the domain has no task {task_id!r}")


def open_environment(domain: Any, task: Any) -> Any:
    """Return a new environment in the initial state of the task."""
    environment = domain.get_environment()
    start = part(task, "initial_state")
    if start is not None:
        environment.set_state(
            initialization_data=part(start, "initialization_data"),
            initialization_actions=part(start, "initialization_actions"),
            message_history=part(start, "message_history") or [],
        )
    return environment


def golden_actions(task: Any) -> list[Any]:
    """The calls that solve a task: `evaluation_criteria.actions`."""
    return list(part(part(task, "evaluation_criteria"), "actions") or [])


def reward_of(
    domain: Any, task: Any, environment: Any, messages: list[Message]
) -> tuple[float, dict[str, float]]:
    """Return reward and components: the domain's own `get_reward`, else tau2's rule.

    That rule: 1 if the database has the hash that the golden actions produce in a new one, and the agent said
    everything in `evaluation_criteria.communicate_info`; else 0.
    """
    if hasattr(domain, "get_reward"):
        reward = run(domain.get_reward(task, environment, messages))
        return reward if isinstance(reward, tuple) else (float(reward), {})
    expected = open_environment(domain, task)
    for action in golden_actions(task):
        use = expected.use_user_tool if part(action, "requestor") == "user" else expected.use_tool
        use(part(action, "name"), **(part(action, "arguments") or {}))
    same = float(environment.get_db_hash() == expected.get_db_hash())
    said = (
        " ".join(str(m.get("content") or "") for m in messages if m["role"] == "assistant")
        .lower()
        .replace(",", "")
    )
    wanted = part(part(task, "evaluation_criteria"), "communicate_info") or []
    told = float(all(str(info).lower() in said for info in wanted))
    return same * told, {"database": same, "communicated": told}


def part(owner: Any, name: str) -> Any:
    """Return an attribute or key, None without one."""
    return owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)


def run(result: Any) -> Any:
    """Return the result of a domain's function, run to its end if it is a coroutine. Not for use on an event loop."""

    async def wait() -> Any:
        return await result

    return asyncio.run(wait()) if inspect.isawaitable(result) else result


def as_text(result: Any) -> str:
    """Return a tool's result as the model sees it: text unchanged, anything else as JSON."""
    if isinstance(result, str):
        return result
    return json.dumps(result, default=lambda v: v.model_dump() if hasattr(v, "model_dump") else str(v))
