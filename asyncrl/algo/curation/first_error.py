"""SCOPE: failed episodes are recycled, by branches that leave them before their first wrong turn.

A turn is wrong where the environment says that its action disagrees with an expert's (`Step.matches`). Of the failed
episodes those with most right turns before it come first; with more branches than these, each gets several.

Source: SCOPE, arXiv 2602.24110, which finds the first wrong step by a process reward model and has a stronger model
rewrite it. Here the environment finds it, and the policy itself tries again: all that is trained was sampled by it.
What was right stays context in the branch and is trained in the episode that sampled it; with the advantage `tree` it
has the credit of both. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.algo.curation.early_end import succeeded
from asyncrl.algo.curation.forks import Fork
from asyncrl.types import Trajectory


def before_first_error(trajectories: Sequence[Trajectory], count: int) -> list[Fork]:
    """Return `count` forks, or none where no episode failed after a right turn."""
    failed = [(place, t) for place, t in enumerate(trajectories) if t.usable and not succeeded(t)]
    forks = [Fork(place, turn) for place, t in failed if (turn := first_error(t))]
    forks.sort(key=lambda fork: -fork.turn)
    return [forks[i % len(forks)] for i in range(count)] if forks else []


def first_error(trajectory: Trajectory) -> int | None:
    """Return the number of the first wrong turn; None where the environment names none."""
    return next((number for number, turn in enumerate(trajectory.turns) if turn.matches is False), None)
