"""Clients of the buffer: asynchronous for workers and the launcher, synchronous for the trainer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncrl.clients.http import HttpClient
from asyncrl.data.codec import decode_group, encode_group, lease_from_map, task_to_map
from asyncrl.types import Group, Lease, Task

T = TypeVar("T")
MARGIN_S = 30.0
"""How much longer than a server-side wait the client waits for the answer."""


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """What became of a group: "ready", "dropped", "retried" or "failed", with the reason."""

    outcome: str
    reason: str
    duplicate: bool


class BufferClient:
    """The ledger's verbs over HTTP. All may be repeated safely."""

    def __init__(self, url: str, token: str = "") -> None:
        self._http = HttpClient(url, token)

    async def close(self) -> None:
        await self._http.close()

    async def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Plan tasks; return how many were new."""
        answer = await self._http.post("/v1/tasks", {"tasks": [task_to_map(task) for task in tasks]})
        return answer["added"]

    async def close_plan(self) -> None:
        """Say that no more tasks come."""
        await self._http.post("/v1/plan/close")

    async def lease(self, worker: str, wait_s: float) -> Lease | None:
        """Lease a group; None when nothing could be leased within `wait_s`.

        A lease whose answer is lost runs out by itself, so the call is repeated safely.
        """
        body = {"worker": worker, "wait_s": wait_s}
        answer = await self._http.post("/v1/lease", body, wait_s + MARGIN_S)
        return None if answer["lease"] is None else lease_from_map(answer["lease"])

    async def renew(self, lease_id: str) -> float:
        """Extend a lease; return the seconds it has. Raises `ConflictError` when it is gone."""
        return (await self._http.post("/v1/renew", {"lease": lease_id}))["expires_in_s"]

    async def release(self, lease_id: str) -> None:
        """Give a lease back unused."""
        await self._http.post("/v1/release", {"lease": lease_id})

    async def put(self, group: Group) -> PutOutcome:
        """Hand in a finished group. Raises `ConflictError` (lease gone), `InputError` (refused)."""
        return PutOutcome(**await self._http.post("/v1/put", encode_group(group)))

    async def take(self, step: int, wait_s: float) -> list[Group] | None:
        """Return the step's groups, [] when the plan is exhausted, None when not ready within `wait_s`."""
        answer = await self._http.post("/v1/take", {"step": step, "wait_s": wait_s}, wait_s + MARGIN_S)
        return None if answer["groups"] is None else [decode_group(body) for body in answer["groups"]]

    async def commit(self, version: int) -> None:
        """Account for a published version."""
        await self._http.post("/v1/commit", {"version": version})

    async def rollback(self, version: int) -> int:
        """Forget what came after `version`; return how many tasks wait again."""
        return (await self._http.post("/v1/rollback", {"version": version}))["pending_again"]

    async def status(self) -> dict[str, Any]:
        """Return the ledger's counts."""
        return await self._http.get("/v1/status")


class BufferClientSync:
    """The trainer's view, on an event loop in a thread of its own."""

    def __init__(self, url: str, token: str = "") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="buffer-client", daemon=True)
        self._thread.start()
        self._client = BufferClient(url, token)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def take(self, step: int, wait_s: float) -> list[Group] | None:
        """See `BufferClient.take`; waits in pieces the server allows."""
        left_s = wait_s
        while True:
            piece_s = min(left_s, 60.0)
            groups = self._run(self._client.take(step, piece_s))
            left_s -= piece_s
            if groups is not None or left_s <= 0:
                return groups

    def commit(self, version: int) -> None:
        self._run(self._client.commit(version))

    def stats(self) -> dict[str, Any]:
        return self._run(self._client.status())

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
