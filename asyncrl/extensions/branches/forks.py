"""Where branches leave the episodes that were played: before the turns about which the policy was least certain.

Uncertainty is a turn's mean negative log-probability, an unbiased estimate of the policy's entropy there. The first
turn is no fork: a branch from it would be an episode of its own. Failed episodes have no forks.

Source: branching where entropy is high, as in TreeRL (arXiv 2506.11902). Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from asyncrl.types import Status, Trajectory


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a branch leaves its parent: before the parent's turn `turn`."""

    parent: int
    """Place of the parent among the episodes."""
    turn: int


def least_certain(trajectories: Sequence[Trajectory], count: int) -> list[Fork]:
    """Return up to `count` forks, one before each of the least certain turns, the most uncertain first."""
    candidates = [(-surprise, place, turn) for place, turn, surprise in sites(trajectories)]
    return [Fork(place, turn) for _, place, turn in sorted(candidates)[:count]]


def sites(trajectories: Sequence[Trajectory]) -> Iterator[tuple[int, int, float]]:
    """Yield place, turn and uncertainty of each turn that may be a fork."""
    for place, t in enumerate(trajectories):
        if t.status is Status.FAILED or not t.usable:
            continue
        for number in range(1, len(t.turns)):
            found = surprise(t, number)
            if found is not None:
                yield place, number, found


def surprise(trajectory: Trajectory, number: int) -> float | None:
    """Return the mean negative log-probability of a turn's sampled tokens; None where none was sampled."""
    turn = trajectory.turns[number]
    mask = trajectory.loss_mask[turn.start : turn.end]
    if not mask.any():
        return None
    return -float(trajectory.behavior_logprobs[turn.start : turn.end][mask].mean())
