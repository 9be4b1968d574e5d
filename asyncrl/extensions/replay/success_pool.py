"""A pool of successes: a group in which no episode succeeded is completed by an earlier success at the same problem.

    group of step k without a success, and the problem's newest success with  k - oldest version <= max_age
    -> the group and that success, as one episode more, with the log-probabilities and versions that it was sampled with

The pool holds one success of each problem, of groups that were trained: the newest, of equally new ones the shortest.

    no such success, and one at the problem that was recorded before the run (`asyncrl.extensions.replay.success_file`)
    -> the group and that one, with its log-probabilities, as sampled by version  max(0, k - max_age)

The log-probabilities of a recorded success are those of whatever policy sampled it, so losses and corrections weigh it
by how likely it is now, as they do any stale data. It has no version of this run, and no age that a limit could mean:
it counts as old as a success may be, in each step anew, so that whatever reads ages trusts it least.

Source: the experience pool of DART-GUI, arXiv 2509.23866, which is filled before training and draws at random. The
limit on age, the choice of the newest and that the run's own come first are ours. Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from asyncrl.algo.curation.signal import succeeded
from asyncrl.types import NOT_SAMPLED, Group, Task, Trajectory

_WITH_SIBLINGS = ("rollout", "branch_of")
"""Keys of `Trajectory.info` of rows that are part of an episode, or lean on another one of their group."""


def problem(task: Task) -> str:
    """Return what is equal of tasks that pose the same problem, whatever their ids."""
    return json.dumps([task.env, task.seed, task.split, task.data], sort_keys=True)


def is_pooled(trajectory: Trajectory) -> bool:
    """True for a success that completes a group of which it was not sampled."""
    return bool(trajectory.pooled_from)


def best_success(trajectories: Iterable[Trajectory]) -> Trajectory | None:
    """Return the success that the pool would hold of these; None where none is a whole episode that succeeded."""
    found = [
        t for t in trajectories
        if t.usable and succeeded(t) and not any(key in t.info for key in _WITH_SIBLINGS)
    ]  # fmt: skip
    return min(found, key=lambda t: (-t.min_version, t.num_tokens), default=None)


def lacks_success(group: Group) -> bool:
    """True where there are usable episodes and none of them succeeded."""
    return bool(group.usable) and not any(succeeded(t) for t in group.usable)


def completed(group: Group, success: Trajectory) -> Group:
    """Return the group with the success as its last episode."""
    index = 1 + max(max(t.episode_index, t.rollout) for t in group.trajectories)
    source = f"{success.task_id}/{success.episode_index}"
    row = replace(success, task_id=group.task.id, episode_index=index, pooled_from=source)
    return replace(group, trajectories=(*group.trajectories, row))


def as_old_as_may_be(success: Trajectory, step: int, max_age: int) -> Trajectory:
    """Return a success from before the run as one that a version of this run sampled, `max_age` before `step`."""
    version = max(0, step - max_age)
    return replace(success, versions=np.where(success.loss_mask, version, NOT_SAMPLED).astype(np.int32))


def as_played(group: Group) -> Group:
    """Return the group without what completes it."""
    if not any(is_pooled(t) for t in group.trajectories):
        return group
    return replace(group, trajectories=tuple(t for t in group.trajectories if not is_pooled(t)))
