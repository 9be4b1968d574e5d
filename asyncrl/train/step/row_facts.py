"""What advantages read of rows beyond rewards and turns, as the ways to play groups have noted it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from asyncrl.types import GREEDY_REWARD, Status, Trajectory


def _matches(trajectories: Sequence[Trajectory]) -> list[list[bool]] | None:
    """Return each turn's agreement with the expert, None when the environment does not say.

    A last turn that a limit cut off, so that the environment never saw it, agrees with none.
    """
    seen = [turn for t in trajectories for turn in (t.turns[:-1] if _cut_off(t) else t.turns)]
    if any(turn.matches is None for turn in seen):
        return None
    return [[bool(turn.matches) for turn in t.turns] for t in trajectories]


def _cut_off(t: Trajectory) -> bool:
    return t.status is Status.TRUNCATED and bool(t.turns) and t.turns[-1].matches is None


def _rollouts(trajectories: Sequence[Trajectory]) -> list[str] | None:
    """Return which rollout each row belongs to, where an episode has one trajectory per agent."""
    if not any("rollout" in t.info for t in trajectories):
        return None
    return [f"{t.task_id}/{t.info.get('rollout', t.episode_index)}" for t in trajectories]


def _agents(trajectories: Sequence[Trajectory]) -> list[str]:
    """Return the agent that each row is of, "" where an episode has one."""
    return [str(t.info.get("agent", "")) for t in trajectories]


def _hint_turns(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return how many turns of each row were given."""
    return [int(t.info.get("hint_turns", 0)) for t in trajectories]


def _branches(trajectories: Sequence[Trajectory]) -> list[tuple[str, str, int]]:
    """Return where each row branches off another."""
    return [_branch(t) for t in trajectories]


def _branch(t: Trajectory) -> tuple[str, str, int]:
    """Return the trajectory's name, its parent's and the turn at which it branches off."""
    parent = t.info.get("branch_of")
    above = "" if parent is None else f"{t.task_id}/{parent}"
    return f"{t.task_id}/{t.episode_index}", above, int(t.info.get("branch_turn", 0))


def _greedy_rewards(trajectories: Sequence[Trajectory]) -> Tensor | None:
    """Return the greedy rollout's reward for each row (ReMax), None when none was played."""
    if any(GREEDY_REWARD not in t.info for t in trajectories):
        return None
    return torch.tensor([float(t.info[GREEDY_REWARD]) for t in trajectories])


FACTS: Mapping[str, Callable[[Sequence[Trajectory]], Any]] = {
    "agents": _agents,
    "turn_matches": _matches,
    "rollouts": _rollouts,
    "greedy_rewards": _greedy_rewards,
    "branches": _branches,
    "hint_turns": _hint_turns,
}
"""Rows to a field of `AdvantageBatch`, by its name."""
