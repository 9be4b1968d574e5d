"""The real ledger behind the real queues of waiting requests, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request

from asyncrl.buffer.bodies import Stored
from asyncrl.buffer.ledger import Ledger, Peeked, PutResult, Taken
from asyncrl.extensions.simulation.player import TRAINED
from asyncrl.services.buffer.service import BufferService, Finished
from asyncrl.types import FailureClass, Group, Lease, Task


class _Connected:
    """A client that never disconnects."""

    async def receive(self) -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing completes this future")


CONNECTED = cast("Request", _Connected())


@dataclass(frozen=True, slots=True)
class GroupSize:
    """What a group costs to train."""

    sequences: int
    trained_tokens: int
    sampled_tokens: int
    version_sum: int
    """The sum of the versions of its sampled tokens."""
    oldest: int


class WorkerConnection:
    """A worker's way to the buffer (`rollout.worker.LeaseSource`), which ends when the worker is killed."""

    def __init__(self, buffer: SimulatedBuffer) -> None:
        self._buffer = buffer
        self.cut = False
        """Set when the worker is killed: what its tasks still ask while they end is not answered."""

    async def lease(self, worker: str, wait_s: float) -> Lease | None:
        return await (await self._reached()).lease(worker, wait_s)

    async def renew(self, lease_id: str) -> float:
        return (await self._reached()).ledger.renew(lease_id)

    async def release(self, lease_id: str) -> str:
        # What a killed worker gives back does not arrive, which nobody is told.
        return "" if self.cut else self._buffer.release(lease_id)

    async def fail(self, lease_id: str, failure: FailureClass, error: str) -> str:
        return (await self._reached()).fail(lease_id, failure, error)

    async def put(self, group: Group) -> PutResult:
        return await (await self._reached()).put(group)

    async def reclaim(self, worker: str) -> int:
        return (await self._reached()).reclaim(worker)

    async def _reached(self) -> SimulatedBuffer:
        """Return the buffer; never, once the worker is killed. An error would be an outage that the worker logs."""
        if self.cut:
            await asyncio.get_running_loop().create_future()
        return self._buffer


class SimulatedBuffer:
    """What workers and the trainer ask of a buffer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.service = BufferService(ledger)
        self._sizes: dict[str, GroupSize] = {}
        """The sizes of the groups that were put and not yet taken; the ledger keeps their ids as bodies."""

    async def lease(self, worker: str, wait_s: float) -> Lease | None:
        return await self.service.leases.get(lambda: self.ledger.lease(worker), wait_s, CONNECTED)

    def release(self, lease_id: str) -> str:
        state = self.ledger.release(lease_id)
        self.service.changed()
        return state

    def fail(self, lease_id: str, failure: FailureClass, error: str) -> str:
        state = self.ledger.fail(lease_id, failure, error)
        self.service.changed()
        return state

    async def put(self, group: Group) -> PutResult:
        result = await self.service.put(Finished(group, group.id.encode()))
        if result.outcome == "ready" and not result.duplicate:
            self._sizes[group.id] = _size(group)
        return result

    def reclaim(self, worker: str) -> int:
        lost = self.ledger.reclaim(worker)
        self.service.changed()
        return lost

    async def take(self, step: int, wait_s: float) -> list[GroupSize] | None:
        """Return the batch of a step, [] at the end of the plan; None where it did not come in time."""

        def attempt() -> Taken | None:
            return self.ledger.take_unread(step) if self.ledger.answers(step) else None

        taken = await self.service.takes.get(attempt, wait_s, CONNECTED)
        if taken is None or taken.groups is None:
            return None
        return self._of(taken.groups)

    async def peek(self, step: int, seen: list[str], wait_s: float) -> tuple[list[GroupSize], bool] | None:
        """Return groups of a step that are ready and not in `seen`, which they join; None where none came in time."""

        def attempt() -> Peeked | None:
            peeked = self.ledger.peek(step, seen)
            return peeked if peeked.groups or peeked.complete else None

        found = await self.service.peeks.get(attempt, wait_s, CONNECTED)
        if found is None:
            return None
        seen.extend(_names(found.groups))
        return self._of(found.groups), found.complete

    def _of(self, stored: Sequence[Stored]) -> list[GroupSize]:
        return [self._sizes[name] for name in _names(stored)]

    def commit(self, version: int) -> None:
        """Account for a published version."""
        self.ledger.commit(version)
        self.service.changed()

    def rollback_to(self, version: int) -> None:
        """Forget what came after a version."""
        self.ledger.rollback_to(version)
        self.service.changed()

    async def status(self) -> dict[str, Any]:
        """See `launch.tasks.TaskPlan`."""
        return self.ledger.stats()

    async def add_tasks(self, tasks: list[Task]) -> int:
        """See `launch.tasks.TaskPlan`."""
        added = self.ledger.add_tasks(tasks)
        self.service.changed()
        return added

    async def close_plan(self) -> int:
        """See `launch.tasks.TaskPlan`."""
        abandoned = self.ledger.close_plan()
        self.service.changed()
        return abandoned


def _names(stored: Sequence[Stored]) -> list[str]:
    """Bodies this small are never in files."""
    return [body.decode() for body in stored if isinstance(body, bytes)]


def _size(group: Group) -> GroupSize:
    usable = group.usable
    return GroupSize(
        sequences=len(usable),
        trained_tokens=sum(int(t.info[TRAINED]) for t in usable),
        sampled_tokens=sum(t.num_sampled for t in usable),
        version_sum=sum(int(t.versions.sum()) for t in usable),
        oldest=min(t.min_version for t in usable),
    )
