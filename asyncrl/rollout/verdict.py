"""What is said of an episode after it was played, and how that enters its rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from asyncrl.errors import EpisodeError
from asyncrl.types import Status, Trajectory

Mode = Literal["replace", "add"]
"""Whether a verdict takes the place of the environment's rewards, or is added to them."""
MAX_ERROR = 2000
"""Characters of an error that a trajectory keeps."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an episode earns by it."""

    reward: float
    """What the last turn earns, beside its own score."""
    components: Mapping[str, float]
    turns: Mapping[int, float] = field(default_factory=dict)
    """What turns earn, by their index."""


def with_verdict(trajectory: Trajectory, verdict: Verdict, mode: Mode) -> Trajectory:
    """Return the trajectory with a verdict in its reward, in those of its turns, and in its components.

    `replace` takes the environment's rewards from all turns.
    """
    turns = list(trajectory.turns)
    if mode == "replace":
        turns = [replace(turn, reward=0.0) for turn in turns]
    for place, earned in verdict.turns.items():
        turns[place] = replace(turns[place], reward=turns[place].reward + earned)
    if turns:
        turns[-1] = replace(turns[-1], reward=turns[-1].reward + verdict.reward)
    earned = verdict.reward + sum(verdict.turns.values())
    return replace(
        trajectory,
        turns=tuple(turns),
        reward=earned if mode == "replace" else trajectory.reward + earned,
        components={**trajectory.components, **verdict.components},
    )


def all_with_verdict(played: tuple[Trajectory, ...], verdict: Verdict, mode: Mode) -> tuple[Trajectory, ...]:
    """Return the trajectories of an episode, the main agent's first, with a verdict on it: all of its agents share the
    task and get the score; what turns earn is the main agent's alone."""
    shared = replace(verdict, turns={})
    return with_verdict(played[0], verdict, mode), *(with_verdict(one, shared, mode) for one in played[1:])


def without_verdict(trajectory: Trajectory, error: EpisodeError) -> Trajectory:
    """Return the trajectory of an episode that was played and got no verdict: it fails, and has no reward of 0."""
    return replace(
        trajectory,
        status=Status.FAILED,
        failure=error.failure,
        error=str(error)[:MAX_ERROR],
        success=None,
    )


def timed(trajectory: Trajectory, key: str, seconds: float) -> Trajectory:
    """Return the trajectory with seconds in its timing."""
    return replace(trajectory, timing={**trajectory.timing, key: seconds})
