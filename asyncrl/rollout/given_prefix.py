"""Episodes whose first turns are given: branches of a sibling, and hints.

The given turns are played in the environment like sampled ones and are context to the policy: their tokens are not
trained. Each token of a tree of branches is therefore trained once, in the trajectory that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from asyncrl.algo.curation.branch_width import turn_confidences
from asyncrl.algo.curation.forks import Fork
from asyncrl.errors import ConfigError, EnvironmentFailure, InputError
from asyncrl.generation import Generated
from asyncrl.types import Message, Task, Trajectory

HINT_TURNS = 1
"""Turns of its hint that a hinted episode is given in training."""


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """The beginning of the turn that follows the given ones: what is given of it, and what the branch has sampled."""

    context: np.ndarray
    """[L] int32, all tokens before the turn, which the beginning was sampled after."""
    given: np.ndarray
    """[M] int32, tokens of the turn that a parent sampled."""
    sampled: Generated
    """What the branch has after these; "length" where the turn goes on."""

    @property
    def token_ids(self) -> np.ndarray:
        """[N] int32, the beginning of the turn."""
        return np.concatenate([self.given, self.sampled.token_ids])


@dataclass(frozen=True, slots=True)
class GivenPrefix:
    """The first turns of an episode."""

    turns: tuple[np.ndarray, ...]
    """Token ids of each turn, [N] int32, with the token that ends it."""
    info: dict[str, Any] = field(default_factory=dict)
    """Goes into the trajectory's `info`."""
    session: str = ""
    """Session whose prefix the engine may still hold; "" for the episode's own."""
    confidences: tuple[float, ...] = ()
    """Confidence of each turn when it was sampled, where the episode may be pruned."""
    floor: float = 0.0
    """Confidence below which the episode is pruned (`asyncrl.algo.curation.branch_width`); 0 never."""
    started: StartedTurn | None = None
    """The beginning of the turn after these."""


def branch(parent: Trajectory, fork: Fork, session: str, floor: float = 0.0) -> GivenPrefix:
    """Return the prefix of an episode that repeats `parent` up to the fork. `session` is the parent's.

    floor: confidence below which the episode is pruned; 0 never.
    """
    turns = tuple(parent.token_ids[turn.start : turn.end] for turn in parent.turns[: fork.turn])
    info = {"branch_of": parent.episode_index, "branch_turn": fork.turn}
    confidences = tuple(turn_confidences(parent, fork.turn)) if floor else ()
    return GivenPrefix(turns, info, session, confidences, floor)


def shortened(prefix: GivenPrefix, turns: int) -> GivenPrefix | None:
    """Return the first turns of a hint; None where that is none."""
    kept = prefix.turns[:turns]
    return replace(prefix, turns=kept, info={**prefix.info, "hint_turns": len(kept)}) if kept else None


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
