"""The tokens of a task's right answer, for objectives that ask how likely the policy finds it (IGPO)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from asyncrl.errors import ConfigError, EnvironmentFailure, EpisodeError, InputError
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest, failed_episode
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.types import ANSWER_IDS, Lease, Message, Task


class Answers:
    """A `GroupStrategy` that notes the tokens of the task's right answer on its trajectories, for the trainer.

    encode: gives the ids of an assistant message.
    """

    def __init__(self, encode: Callable[[Message], np.ndarray]) -> None:
        self.encode = encode

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`; all episodes fail where the task has no answer."""
        try:
            ids = answer_ids(lease.task, self.encode)
        except EpisodeError as error:
            return [(failed_episode(one.task, one.index, error.failure, str(error)),) for one in requests]
        played = await play(requests)
        return [tuple(replace(t, info={**t.info, ANSWER_IDS: ids}) for t in episode) for episode in played]


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


def configured(parts: WorkerParts) -> Answers | None:
    """Return what notes answers for an objective that reads them."""
    return Answers(parts.encode) if "answers" in parts.needs else None
