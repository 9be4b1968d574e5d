"""The tokens of a task's right answer, for objectives that ask how likely the policy finds it (IGPO)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from asyncrl.errors import ConfigError, EnvironmentFailure, InputError
from asyncrl.types import ANSWER_IDS, Message, Task, Trajectory


def has_answer(task: Task) -> bool:
    """Return whether a task has its right answer, as a text or a message."""
    answer = task.data.get("answer")
    return isinstance(answer, str | dict) and bool(answer)


def answer_ids(task: Task, encode: Callable[[Message], np.ndarray]) -> list[int]:
    """Return the ids a policy would sample to give `task.data["answer"]`: the text of a last turn, or a message.

    `encode` gives the ids of an assistant message. Raises `EnvironmentFailure` where the task has no answer or `encode`
    cannot write it.
    """
    answer = task.data.get("answer")
    if not isinstance(answer, str | dict) or not has_answer(task):
        raise EnvironmentFailure(
            f"task {task.id}: algo.advantage reads how likely the right answer is, so the task's data must have it as "
            f"'answer', a text or message; got {answer!r}"
        )
    message = answer if isinstance(answer, dict) else {"role": "assistant", "content": answer}
    try:
        return [int(i) for i in encode(message)]
    except (ConfigError, InputError) as error:
        raise EnvironmentFailure(f"task {task.id}: the answer cannot be written: {error}") from error


def with_answer(trajectories: Sequence[Trajectory], ids: list[int]) -> list[Trajectory]:
    """Note the answer on each trajectory, for the trainer."""
    return [replace(t, info={**t.info, ANSWER_IDS: ids}) for t in trajectories]
