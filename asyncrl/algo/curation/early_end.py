"""Which groups have no signal: all their episodes earned the same. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.types import Trajectory


def differ(trajectories: Sequence[Trajectory]) -> bool:
    """True when trajectories differ in reward, or in the sequence of rewards their turns earned.

    Differing components alone do not count: they matter only to multi-reward advantages, whose recipes set
    `buffer.drop_no_signal = false`.
    """
    first = _earned(trajectories[0])
    return any(_earned(t) != first for t in trajectories[1:])


def _earned(trajectory: Trajectory) -> tuple[float, list[float]]:
    return trajectory.reward, [turn.reward for turn in trajectory.turns if turn.reward]


def succeeded(trajectory: Trajectory) -> bool:
    """Return the environment's verdict or, where it gives none, whether the reward is above 0."""
    return trajectory.reward > 0 if trajectory.success is None else trajectory.success
