"""Tasks of several environments in one list: the form in which the environment `mix` gets and plays them."""

from __future__ import annotations

from asyncrl.types import Task

PART = "part"
HINT = "hint"


def in_part(part: str, task: Task, env: str = "mix") -> Task:
    """Return a part's task as one of `env`, which plays it inside."""
    data = {PART: part, "data": task.data}
    # Read by the rollout, which does not know about parts.
    data |= {HINT: task.data[HINT]} if HINT in task.data else {}
    return Task(f"{part}-{task.id}", env, task.seed, task.split, data)
