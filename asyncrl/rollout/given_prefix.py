"""Episodes whose first turns are given: branches of a sibling, and hints.

The given turns are played in the environment like sampled ones and are context to the policy: their tokens are not
trained. Each token of a tree of branches is therefore trained once, in the trajectory that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.algo.curation.forks import Fork
from asyncrl.errors import ConfigError, EnvironmentFailure, InputError
from asyncrl.types import Message, Task, Trajectory

HINT_TURNS = 1
"""Turns of its hint that a hinted episode is given in training."""


@dataclass(frozen=True, slots=True)
class GivenPrefix:
    """The first turns of an episode."""

    turns: tuple[np.ndarray, ...]
    """Token ids of each turn, [N] int32, with the token that ends it."""
    info: dict[str, Any] = field(default_factory=dict)
    """Goes into the trajectory's `info`."""
    session: str = ""
    """Session whose prefix the engine may still hold; "" for the episode's own."""


def branch(parent: Trajectory, fork: Fork, session: str) -> GivenPrefix:
    """Return the prefix of an episode that repeats `parent` up to the fork. `session` is the parent's."""
    turns = tuple(parent.token_ids[turn.start : turn.end] for turn in parent.turns[: fork.turn])
    info = {"branch_of": parent.episode_index, "branch_turn": fork.turn}
    return GivenPrefix(turns, info, session)


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
