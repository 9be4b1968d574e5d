"""Tasks, leases and groups for the buffer's tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.extensions.replica.replica import Place, Replica
from asyncrl.types import FailureClass, Group, Lease, Status, Task, Trajectory, Turn


def tasks(count: int, start: int = 0) -> list[Task]:
    return [Task(id=f"t{i}", env="gridworld", seed=i) for i in range(start, start + count)]


def trajectory(
    task_id: str,
    index: int = 0,
    versions: Sequence[int] = (0, 0),
    reward: float = 0.0,
    failure: FailureClass | None = None,
    length: int = 0,
) -> Trajectory:
    """A prompt token followed by one sampled token for each version, padded with observations to `length`."""
    sampled = [] if failure else list(versions)
    rest = max(0, length - 1 - len(sampled))
    mask = np.array([False] + [True] * len(sampled) + [False] * rest)
    return Trajectory(
        task_id=task_id,
        episode_index=index,
        token_ids=np.arange(len(mask), dtype=np.int32),
        loss_mask=mask,
        behavior_logprobs=np.where(mask, -0.5, 0.0).astype(np.float32),
        versions=np.array([-1, *sampled] + [-1] * rest, np.int32),
        turns=(Turn(1, 1 + len(sampled), reward),) if sampled else (),
        reward=reward,
        status=Status.FAILED if failure else Status.FINISHED,
        failure=failure,
        error="broke" if failure else "",
    )


def group(
    lease: Lease, versions: Sequence[int] = (), rewards: Sequence[float] = (0.0, 1.0), length: int = 0
) -> Group:
    """A group as the leasing worker would put it; sampled at admission unless `versions` says otherwise."""
    sampled = tuple(versions) or (lease.version,)
    return Group(
        id=lease.id,
        task=lease.task,
        version=lease.version,
        trajectories=tuple(
            trajectory(lease.task.id, i, sampled, reward, length=length) for i, reward in enumerate(rewards)
        ),
        worker="w",
    )


def failed_group(lease: Lease, failures: Sequence[FailureClass | None]) -> Group:
    """A group whose episodes failed as listed; None is a usable one with reward 1."""
    episodes = tuple(
        trajectory(lease.task.id, i, (lease.version,), 0.0 if failure else 1.0, failure)
        for i, failure in enumerate(failures)
    )
    return Group(lease.id, lease.task, lease.version, episodes, "w")


def ledger(
    path: object = ":memory:", count: int = 8, replica: Place | None = None, **settings: object
) -> Ledger:
    """A ledger with `count` planned tasks, P = 2, S = 1, G = 2."""
    chosen = {"groups_per_step": 2, "max_staleness": 1, "group_size": 2, "lease_s": 10.0} | settings
    made = Ledger(
        path, LedgerSettings(**chosen), now=0.0, follower=None if replica is None else Replica(replica)
    )  # type: ignore[arg-type]
    made.add_tasks(tasks(count))
    return made


def lease(ledger: Ledger, worker: str = "w", now: float = 0.0, request: str = "") -> Lease:
    found = ledger.lease(worker, now, request)
    assert found is not None
    return found
