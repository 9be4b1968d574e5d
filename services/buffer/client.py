"""Clients of the buffer: asynchronous for workers and the launcher, synchronous for the trainer."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.buffer.body_files import (
    LARGE_BYTES,
    MAX_GROUP_BYTES,
    FileBody,
    read_body,
    same_folder,
    write_reserved,
)
from asyncrl.config import RESTART_S
from asyncrl.credentials import bearer
from asyncrl.data.codec import encode_group, lease_from_map, pack, pack_list, task_to_map
from asyncrl.errors import AsyncRLError
from asyncrl.services.http.client import HttpClient, Pieces, error_named
from asyncrl.types import FailureClass, Group, Lease, Task

T = TypeVar("T")
TASKS_PER_CALL = 10_000
MAX_ERROR = 2000
PUT_S = 120.0
"""Time limit of a put, beside that of its transfer. Thousands may wait for their turn."""
CALL_BYTES = MAX_GROUP_BYTES // 2
"""Groups that are put together have fewer bytes, unless one alone has more."""
PIECE_S = 60.0
"""Longest single wait of the synchronous client."""
READERS = 2
"""Threads that read files. Their checksums take longer than the reading, and are computed at once."""
MARGIN_S = 30.0
"""Added to a wait on the server while the client waits for the answer."""


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """What became of a group: "ready", "dropped", "retried" or "failed", with the reason."""

    outcome: str
    reason: str
    duplicate: bool


class BufferClient:
    """The ledger's verbs over HTTP, see `buffer.ledger.Ledger`. All may be repeated safely.

    token: a bearer token; None for that of this process, see `credentials`.
    retry_s: how long an unreachable buffer, such as one that restarts, is retried.
    """

    def __init__(self, url: str, token: str | None = None, retry_s: float = RESTART_S) -> None:
        self._http = HttpClient(url, bearer(token, "buffer"), retry_s)
        self.awaited: tuple[str, ...] = ()
        """Unfinished groups that the latest `take` waited for."""
        self._folder: str | None = None
        """The folder of large groups, see `_shared_folder`; None before it was looked for."""

    async def close(self) -> None:
        await self._http.close()

    async def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Plan tasks; return how many were new."""
        added = 0
        for start in range(0, len(tasks), TASKS_PER_CALL):
            chunk = [task_to_map(task) for task in tasks[start : start + TASKS_PER_CALL]]
            added += (await self._http.post("/v1/tasks", {"tasks": chunk}))["added"]
        return added

    async def close_plan(self, abandon: bool = False) -> int:
        """Declare the plan complete; with `abandon` drop the tasks that wait, and return how many."""
        return (await self._http.post("/v1/plan/close", {"abandon": abandon}))["abandoned"]

    async def lease(self, worker: str, wait_s: float) -> Lease | None:
        """Lease a group; None when nothing could be leased within `wait_s`."""
        body = {"worker": worker, "wait_s": wait_s, "request": secrets.token_hex(8)}
        answer = await self._http.post("/v1/lease", body, wait_s + MARGIN_S)
        return None if answer["lease"] is None else lease_from_map(answer["lease"])

    async def renew(self, lease_id: str) -> float:
        """Extend a lease; return the seconds it has. Raises `ConflictError` when it is gone."""
        return (await self._http.post("/v1/renew", {"lease": lease_id}))["expires_in_s"]

    async def release(self, lease_id: str) -> str:
        """Give a lease back unused; return the task's state."""
        return (await self._http.post("/v1/release", {"lease": lease_id}))["state"]

    async def fail(self, lease_id: str, failure: FailureClass, error: str) -> str:
        """Give a lease back because the environment or the infrastructure failed; return the task's state."""
        body = {"lease": lease_id, "failure": str(failure), "error": error[:MAX_ERROR]}
        return (await self._http.post("/v1/fail", body))["state"]

    async def put(self, group: Group) -> PutOutcome:
        """Hand in a finished group.

        Raises `ConflictError` (lease gone), `StaleError` (a token older than the admission), `InputError`.
        """
        body = encode_group(group)
        (written,) = await self._put_files([body])
        if isinstance(written, AsyncRLError):
            raise written
        return written or PutOutcome(**await self._http.post("/v1/put", body, PUT_S))

    async def put_many(self, groups: Sequence[Group]) -> list[PutOutcome | AsyncRLError]:
        """Hand in several groups in one call; each is answered for itself, with the error `put` would raise."""
        bodies = [encode_group(group) for group in groups]
        return [answer for part in _portions(bodies) for answer in await self._put_bodies(part)]

    async def _put_bodies(self, bodies: Sequence[bytes]) -> list[PutOutcome | AsyncRLError]:
        found = await self._put_files(bodies)
        rest = [body for body, answer in zip(bodies, found, strict=True) if answer is None]
        if not rest:
            return [answer for answer in found if answer is not None]
        pieces = [b"\x81" + pack("groups"), *pack_list(rest)]
        answer = await self._http.post("/v1/put_many", Pieces(pieces), PUT_S)
        sent = map(_outcome, answer["results"])
        return [next(sent) if answer is None else answer for answer in found]

    async def _put_files(self, bodies: Sequence[bytes]) -> list[PutOutcome | AsyncRLError | None]:
        """Hand in the large ones of some encoded groups through files, where the buffer's folder is on this machine:
        less work for both than a connection. None for those that are to be sent."""
        found: list[PutOutcome | AsyncRLError | None] = [None] * len(bodies)
        large = [place for place, body in enumerate(bodies) if len(body) >= LARGE_BYTES]
        if not large or not (folder := await self._shared_folder()):
            return found
        numbers = (await self._http.post("/v1/reserve", {"count": len(large)}))["files"]
        written = [(number, bodies[place]) for place, number in zip(large, numbers, strict=False)]
        try:
            await asyncio.to_thread(_write, Path(folder), written)
        except OSError:
            # The buffer says what is wrong with its disk.
            return found
        if written:
            files = [{"file": number, "size": len(body)} for number, body in written]
            answer = await self._http.post("/v1/put_files", {"files": files}, PUT_S)
            for place, result in zip(large, answer["results"], strict=False):
                found[place] = None if result is None else _outcome(result)
        return found

    async def take(self, step: int, wait_s: float) -> list[bytes] | None:
        """Return the step's groups as they were put, [] when the plan is exhausted, None when not ready in `wait_s`.

        `data.codec.decode_group` decodes one. Large ones are read from the buffer's files where it is on this machine.
        """
        call = {"step": step, "wait_s": wait_s, "files": bool(await self._shared_folder())}
        answer = await self._http.post("/v1/take", call, wait_s + MARGIN_S)
        self.awaited = tuple(answer["awaited"])
        if answer["groups"] is None or all(isinstance(group, bytes) for group in answer["groups"]):
            return answer["groups"]
        groups = await self._read(answer["groups"])
        if all(groups):
            return groups
        # The buffer has moved, or has lost files: it knows better, and plans again what is lost.
        self._folder = ""
        return await self.take(step, wait_s)

    async def _shared_folder(self) -> str:
        """Return the folder with the buffer's large groups, "" where it is not on this machine."""
        if self._folder is None:
            shared = await self._http.get("/v1/bodies")
            folder, proof = shared["folder"], shared["proof"]
            here = bool(folder) and await asyncio.to_thread(same_folder, Path(folder), proof)
            self._folder = folder if here else ""
        return self._folder

    async def _read(self, groups: Sequence[bytes | list[int]]) -> list[bytes]:
        """Return the bytes of groups that are named by file, size and checksum; b"" where they are not found."""
        folder = Path(self._folder or "")

        def read(part: Sequence[bytes | list[int]]) -> list[bytes]:
            return [
                g if isinstance(g, bytes) else _read_here(folder, FileBody(g[0], g[1], g[2])) for g in part
            ]

        parts = await asyncio.gather(
            *(asyncio.to_thread(read, groups[thread::READERS]) for thread in range(READERS))
        )
        return [parts[place % READERS][place // READERS] for place in range(len(groups))]

    async def peek(self, step: int, seen: Sequence[str], wait_s: float) -> tuple[list[bytes], bool]:
        """Return groups of the step's batch that are ready and not in `seen`, and whether the batch is complete.

        Nothing is taken. Waits up to `wait_s` for either.
        """
        body = {"step": step, "seen": list(seen), "wait_s": wait_s}
        answer = await self._http.post("/v1/peek", body, wait_s + MARGIN_S)
        return answer["groups"], answer["complete"]

    async def commit(self, version: int) -> None:
        """Account for a published version."""
        await self._http.post("/v1/commit", {"version": version})

    async def drop(self, step: int, group_ids: Sequence[str], reason: str) -> int:
        """Set groups of a taken batch aside as dropped; return how many."""
        body = {"step": step, "leases": list(group_ids), "reason": reason}
        return (await self._http.post("/v1/drop", body))["dropped"]

    async def reject(
        self,
        step: int,
        group_ids: Sequence[str],
        reason: str,
        engines: Mapping[str, Sequence[str]] | None = None,
    ) -> list[str]:
        """Give a taken batch back and quarantine the workers that leased these groups of it; return their names.

        engines: those at fault, with the groups that show it, see `Ledger.reject`.
        """
        body = {
            "step": step,
            "leases": list(group_ids),
            "reason": reason[:MAX_ERROR],
            "engines": {engine: list(shown) for engine, shown in (engines or {}).items()},
        }
        return (await self._http.post("/v1/reject", body))["workers"]

    async def fail_taken(self, step: int, group_ids: Sequence[str], reason: str) -> int:
        """Give a taken batch back and count these groups of it as attempts lost to the infrastructure; return how many
        are planned again."""
        body = {"step": step, "leases": list(group_ids), "reason": reason[:MAX_ERROR]}
        return (await self._http.post("/v1/fail_taken", body))["pending_again"]

    async def pause(self, paused: bool) -> None:
        """Stop or resume granting leases."""
        await self._http.post("/v1/pause", {"paused": paused})

    async def set_staleness_limit(self, limit: int) -> None:
        """Admit groups under another staleness limit from now on."""
        await self._http.post("/v1/staleness_limit", {"limit": limit})

    async def tell(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a hook's route."""
        return await self._http.post(route, body)

    async def quarantine(self, worker: str, reason: str) -> int:
        """Refuse a worker further leases; return how many of its groups are planned again."""
        return (await self._http.post("/v1/quarantine", {"worker": worker, "reason": reason}))[
            "pending_again"
        ]

    async def readmit_users(self, engine: str) -> list[str]:
        """Readmit the workers that were quarantined for the fault of an engine; return their names. Call when none can
        reach it any more."""
        return (await self._http.post("/v1/readmit_users", {"engine": engine}))["workers"]

    async def readmit(self, worker: str) -> str:
        """Let a quarantined worker have leases again; return why it had none, "" when it was not quarantined."""
        return (await self._http.post("/v1/readmit", {"worker": worker}))["was"]

    async def reclaim(self, worker: str) -> int:
        """End all leases of a worker that has just started: their groups are lost. Return how many."""
        return (await self._http.post("/v1/reclaim", {"worker": worker}))["lost"]

    async def rollback(self, version: int) -> int:
        """Forget what came after `version`; return how many tasks are pending again."""
        return (await self._http.post("/v1/rollback", {"version": version}))["pending_again"]

    async def replan(self, version: int) -> int:
        """Plan all that is in flight at `version` again; return how many groups."""
        return (await self._http.post("/v1/replan", {"version": version}))["pending_again"]

    async def describe(self, job: dict[str, Any]) -> None:
        """Describe the job to processes that join it: config, model, weights_dir, engines, envs."""
        await self._http.post("/v1/job", job)

    async def job(self) -> dict[str, Any]:
        """Return the description of the job, with the engines and environments that have joined."""
        return await self._http.get("/v1/job")

    async def enroll(self, role: str, name: str = "") -> str:
        """Return credentials (`Credentials.text`) to join with as "engine", "env" or "rollout"."""
        return (await self._http.post("/v1/enroll", {"role": role, "name": name}))["credentials"]

    async def join(self, role: str, url: str) -> float:
        """Join as "engine" or "env"; return the seconds until this call must be repeated."""
        return (await self._http.post("/v1/join", {"role": role, "url": url}))["expires_in_s"]

    async def leave(self, url: str) -> None:
        """Leave the job."""
        await self._http.post("/v1/leave", {"url": url})

    async def status(self) -> dict[str, Any]:
        """Return the ledger's counts."""
        return await self._http.get("/v1/status")


def members_of(job: dict[str, Any] | None, role: str, known: Collection[str]) -> set[str]:
    """Return the addresses of a job's members in `role`, "engine" or "env"; in "" there are none.

    job: the buffer's answer, None when it gave none. `known` members stay members then. They also stay while a buffer
    that has just started may not have heard from every member yet; only those that are known to have left are removed.
    """
    if job is None:
        return set(known)
    found = set(job["joined"][role]) if role else set()
    return found if job["settled"] else found | (set(known) - set(job["left"]))


def _read_here(folder: Path, body: FileBody) -> bytes:
    """Return the bytes of a body; b"" where they cannot be read in this process, and the buffer is to send them."""
    try:
        return read_body(folder, body) or b""
    except OSError:
        return b""


def _write(folder: Path, bodies: Sequence[tuple[int, bytes]]) -> None:
    for number, body in bodies:
        write_reserved(folder, number, body)


def _portions(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Divide encoded groups, in order, among as few calls as `CALL_BYTES` allows."""
    part: list[bytes] = []
    for body in bodies:
        if part and sum(map(len, part)) + len(body) > CALL_BYTES:
            yield part
            part = []
        part.append(body)
    if part:
        yield part


class Addresses:
    """Where a process finds one role, "engine" or "env": at the addresses it was given, or where those have moved, at
    those that were added, and at those of members that joined the job; no longer at those that were retired. Nobody
    joins in the role ""."""

    def __init__(self, role: str, given: Collection[str]) -> None:
        self.role = role
        self._given = frozenset(given)
        self._moved: dict[str, str] = {}
        self._added: set[str] = set()
        self._retired: set[str] = set()
        self._joined: set[str] = set()
        self._tokens: dict[str, str] = {}
        self.urls = set(given)

    def token(self, url: str) -> str | None:
        """Return the bearer token with which this process calls a member that has joined; None for the run's own."""
        return self._tokens.get(url)

    def update(self, job: dict[str, Any] | None) -> tuple[set[str], set[str]]:
        """Take the buffer's answer, None without any; return the addresses that are new, and those that are gone.

        One at which another member is now than before is new.
        """
        self._joined = members_of(job, self.role, self._joined)
        if job is not None:
            self._moved = job["moved"]
            self._added = set(job.get("added", {}).get(self.role, ()))
            self._retired = set(job.get("retired", ()))
        known = self._tokens
        if job is not None:
            # A buffer that has just started may not have heard from every member yet.
            self._tokens = {url: token for url, token in known.items() if not job["settled"]} | job["tokens"]
        before, given = self.urls, {self._moved.get(url, url) for url in self._given}
        self.urls = (given | self._added | self._joined) - self._retired
        replaced = {url for url in self.urls & before if known.get(url) != self._tokens.get(url)}
        return (self.urls - before) | replaced, before - self.urls


def _outcome(result: dict[str, Any]) -> PutOutcome | AsyncRLError:
    if "error" not in result:
        return PutOutcome(**result)
    return error_named(result["error"].get("type"), result["error"].get("message", ""), result["status"])


class BufferClientSync:
    """The trainer's view, on an event loop in a thread of its own."""

    def __init__(self, url: str, token: str | None = None, retry_s: float = RESTART_S) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="buffer-client", daemon=True)
        self._thread.start()
        self._client = BufferClient(url, token, retry_s)

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def take(self, step: int, wait_s: float) -> list[bytes] | None:
        """See `BufferClient.take`; waits in pieces the server allows."""
        left_s = wait_s
        while True:
            piece_s = min(left_s, PIECE_S)
            groups = self._run(self._client.take(step, piece_s))
            left_s -= piece_s
            if groups is not None or left_s <= 0:
                return groups

    def peek(self, step: int, seen: Sequence[str], wait_s: float) -> tuple[list[bytes], bool]:
        """See `BufferClient.peek`; `wait_s` is at most what the server allows."""
        return self._run(self._client.peek(step, seen, min(wait_s, PIECE_S)))

    def commit(self, version: int) -> None:
        self._run(self._client.commit(version))

    def drop(self, step: int, group_ids: Sequence[str], reason: str) -> int:
        return self._run(self._client.drop(step, group_ids, reason))

    def pause(self, paused: bool) -> None:
        self._run(self._client.pause(paused))

    def rollback(self, version: int) -> int:
        return self._run(self._client.rollback(version))

    def replan(self, version: int) -> int:
        return self._run(self._client.replan(version))

    def reject(
        self,
        step: int,
        group_ids: Sequence[str],
        reason: str,
        engines: Mapping[str, Sequence[str]] | None = None,
    ) -> list[str]:
        return self._run(self._client.reject(step, group_ids, reason, engines))

    def fail_taken(self, step: int, group_ids: Sequence[str], reason: str) -> int:
        return self._run(self._client.fail_taken(step, group_ids, reason))

    def set_staleness_limit(self, limit: int) -> None:
        self._run(self._client.set_staleness_limit(limit))

    def tell(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._run(self._client.tell(route, body))

    def quarantine(self, worker: str, reason: str) -> int:
        return self._run(self._client.quarantine(worker, reason))

    def readmit_users(self, engine: str) -> list[str]:
        return self._run(self._client.readmit_users(engine))

    def readmit(self, worker: str) -> str:
        return self._run(self._client.readmit(worker))

    def stats(self) -> dict[str, Any]:
        return self._run(self._client.status())

    def job(self) -> dict[str, Any]:
        return self._run(self._client.job())

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
