"""Hints: some episodes of a group begin with turns that an expert has written, from `task.data["hint"]`.

The given turns are played in the environment like sampled ones and are context to the policy: their tokens are not
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from asyncrl.errors import ConfigError, EnvironmentFailure, EpisodeError, InputError
from asyncrl.extensions.hints.settings import HintsConfig
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodeRequest, GivenPrefix, failed_episode
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.types import Lease, Message, Task

HINT_TURNS = 1
"""Turns of its hint that a hinted episode is given in training."""


class Hints:
    """A `GroupStrategy` that gives the first `count` episodes of a group their first turns.

    most: turns that are given; None for the whole hint. encode: gives the ids of an assistant message.
    """

    def __init__(
        self, count: int, encode: Callable[[Message], np.ndarray], most: int | None = HINT_TURNS
    ) -> None:
        self.count = count
        self.encode = encode
        self.most = most

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`; all episodes fail where the hint cannot be written."""
        try:
            prefix = hint(lease.task, self.most, self.encode)
        except EpisodeError as error:
            return [(failed_episode(one.task, one.index, error.failure, str(error)),) for one in requests]
        if prefix is not None:
            requests = [replace(one, prefix=prefix) if one.index < self.count else one for one in requests]
        return await play(requests)


def hint(task: Task, most: int | None, encode: Callable[[Message], np.ndarray]) -> GivenPrefix | None:
    """Return the first turns of `task.data["hint"]`, at most `most`, as a prefix; None for all of them.

    The hint is a list of what an expert would write, turn by turn: text, or messages with tool calls. `encode` gives
    the ids of an assistant message. None for a task without a hint. Raises `EnvironmentFailure` for a hint that
    `encode` cannot write.
    """
    turns = task.data.get("hint")
    if not isinstance(turns, list) or not turns:
        return None
    messages: list[Message] = [
        turn if isinstance(turn, dict) else {"role": "assistant", "content": str(turn)}
        for turn in turns[:most]
    ]
    try:
        return GivenPrefix(tuple(encode(message) for message in messages), {"hint_turns": len(messages)})
    except (ConfigError, InputError) as error:
        raise EnvironmentFailure(f"task {task.id}: the hint cannot be written: {error}") from error


def configured(parts: WorkerParts) -> Hints | None:
    """Return the hints of a run (`rollout.hinted`); None where it has none, and where an agent plays."""
    count = parts.config.section(HintsConfig).hinted
    return Hints(count, parts.encode) if count and not parts.elsewhere else None
