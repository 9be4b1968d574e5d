"""What becomes of a finished group: trained on, dropped with a reason, or tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncrl.types import FailureClass, Group, Trajectory


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome` is "ready", "dropped" or "retry"."""

    outcome: str
    reason: str = ""
    failure: str = ""
    """Class of failure, for "retry"."""
    usable: int = 0
    reward_sum: float = 0.0
    """Over usable episodes."""
    tokens: int = 0
    """Sampled tokens of all episodes."""


def judge(group: Group, group_size: int, drop_no_signal: bool, max_tokens: int) -> Verdict:
    """Decide on a group.

    Too few usable episodes because the environment or the infrastructure failed the others is tried again: it
    says nothing about the task. Otherwise too few usable episodes, an episode longer than `max_tokens`, and
    siblings that all earned the same (with `drop_no_signal`) are dropped.
    """
    usable = group.usable
    counts: dict[str, Any] = {
        "usable": len(usable),
        "reward_sum": float(sum(t.reward for t in usable)),
        "tokens": sum(t.num_sampled for t in group.trajectories),
    }
    if len({t.rollout for t in usable}) < min(2, group_size):
        lost = [t for t in group.trajectories if t.failure not in (None, FailureClass.AGENT)]
        if lost:
            return Verdict("retry", lost[0].error, str(lost[0].failure), **counts)
        return Verdict("dropped", "too_few_usable", **counts)
    if any(t.num_tokens > max_tokens for t in usable):
        return Verdict("dropped", "too_long", **counts)
    if drop_no_signal and group_size > 1 and not has_signal(usable):
        return Verdict("dropped", "no_signal", **counts)
    return Verdict("ready", **counts)


def has_signal(trajectories: tuple[Trajectory, ...]) -> bool:
    """True when siblings differ in reward, or in the sequence of rewards their turns earned.

    Differing components alone do not count: they matter only to multi-reward advantages, whose recipes set
    `buffer.drop_no_signal = false`.
    """
    first = _earned(trajectories[0])
    return any(_earned(t) != first for t in trajectories[1:])


def _earned(trajectory: Trajectory) -> tuple[float, list[float]]:
    return trajectory.reward, [turn.reward for turn in trajectory.turns if turn.reward]
