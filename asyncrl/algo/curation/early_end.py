"""Early end of solved and hopeless groups: a few episodes first, the others only where these differ.

    k of a group's G episodes are played; where all k earned the same, the group ends there and is dropped

Such a group would most often have had no signal with all G either. Where it would have, some is lost. For rewards of 0
and 1, the gradient of a group with R successes is R (G - R) times one direction, the mean score of successes less that
of failures, so what is lost changes the weight of a task and not its direction: near a success rate of 0 or 1 the share
`k / G` of its signal is left, for `k / G` of the episodes. Torch-free.
"""

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


def ends_early(trajectories: Sequence[Trajectory], first: int) -> bool:
    """True when a group's trajectories are those of its `first` episodes and decide that the others are not played.

    None may have failed, whatever the reason: a failed episode is no evidence.
    """
    episodes = {t.rollout for t in trajectories}
    return episodes == set(range(first)) and all(t.usable for t in trajectories) and not differ(trajectories)


def succeeded(trajectory: Trajectory) -> bool:
    """Return the environment's verdict or, where it gives none, whether the reward is above 0."""
    return trajectory.reward > 0 if trajectory.success is None else trajectory.success


def verdict(trajectories: Sequence[Trajectory]) -> str:
    """Return "solved" when every episode succeeded, else "unsolved"."""
    return "solved" if all(succeeded(t) for t in trajectories) else "unsolved"


def expected_episodes(success_rate: float, group_size: int, first: int) -> float:
    """Episodes that a group of a task takes on average: `k + (G - k) (1 - p^k - (1 - p)^k)`."""
    p = success_rate
    return first + (group_size - first) * (1 - p**first - (1 - p) ** first)


def kept_signal(success_rate: float, group_size: int, first: int) -> float:
    """Share of a task's expected gradient that is left, for rewards of 0 and 1 and group-mean advantages.

    `1 - lost(p) - lost(1 - p)` with `lost(p) = p^(k-1) (G - k) (k + (G - k - 1) p) / (G (G - 1))`: what groups whose
    first k episodes all succeeded would have given by the others' failures, over the `G (G - 1) p (1 - p)` of all
    groups.
    """
    rest = group_size - first

    def lost(p: float) -> float:
        return p ** (first - 1) * rest * (first + (rest - 1) * p) / (group_size * (group_size - 1))

    return 1 - lost(success_rate) - lost(1 - success_rate)
