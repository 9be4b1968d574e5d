"""Groups without a signal: their episodes agree in all that the objective's advantages read.

    grpo     rewards (2, 2, 2)                                  no signal: every advantage is 0
    gdpo     rewards (2, 2), components (1 + 1, 2 + 0)          signal: the components are normalised one by one
    mt_grpo  rewards (1, 1), turn rewards ([1, 0], [0, 1])      signal: turns are credited one by one

`algo.settings.compared` says which quantities count for an objective. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from asyncrl.types import Trajectory


def differ(trajectories: Sequence[Trajectory], compared: Collection[str]) -> bool:
    """Return whether trajectories differ in any of `compared`, words of `asyncrl.algo.needs.COMPARED`."""
    return any(len({QUANTITIES[name](t) for t in trajectories}) > 1 for name in compared)


def _steps(trajectory: Trajectory) -> Any:
    steps = tuple((turn.observation_id, turn.reward) for turn in trajectory.turns)
    # Returns of nothing are 0 wherever they were observed.
    return steps if any(reward for _, reward in steps) or trajectory.reward else ()


QUANTITIES: dict[str, Callable[[Trajectory], Any]] = {
    "rewards": lambda t: t.reward,
    "turn_rewards": lambda t: tuple(turn.reward for turn in t.turns),
    "steps": _steps,
    "components": lambda t: tuple(sorted(t.components.items())),
    "matches": lambda t: tuple(turn.matches for turn in t.turns),
}
"""How each of `asyncrl.algo.needs.COMPARED` is read from a trajectory, as a value that can be hashed."""


def succeeded(trajectory: Trajectory) -> bool:
    """Return the environment's verdict or, where it gives none, whether the reward is above 0."""
    return trajectory.reward > 0 if trajectory.success is None else trajectory.success
