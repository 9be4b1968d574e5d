"""The buffer process: the ledger behind HTTP.

    asyncrl serve buffer --folder runs/NAME

Control messages are JSON or msgpack maps, by their content type; groups are msgpack with raw arrays. `lease` and
`take` wait on the server, so clients do not poll. Puts that arrive together reach the disk in one transaction, and so
do leases.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.core import GaugeMetricFamily, Metric

from asyncrl.buffer.bodies import Stored
from asyncrl.buffer.body_files import LARGE_BYTES, MAX_GROUP_BYTES, FileBody
from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.buffer.ledger import (
    LeaseGoneError,
    Ledger,
    LedgerSettings,
    Peeked,
    PutResult,
    Taken,
    UnknownLeaseError,
)
from asyncrl.buffer.store import Follower
from asyncrl.clock import now_s
from asyncrl.credentials import Credentials, own_credentials
from asyncrl.data.codec import decode_group, lease_to_map, pack, task_from_map
from asyncrl.data.memory import return_freed_memory
from asyncrl.data.token_extras.table import check_files, hold_files
from asyncrl.disk import as_told, outage
from asyncrl.errors import AsyncRLError, ConfigError, InputError, UnavailableError
from asyncrl.outage_log import OutageLog
from asyncrl.services.buffer import messages
from asyncrl.services.buffer.access import ROLES
from asyncrl.services.buffer.hook_routes import add_hook_routes
from asyncrl.services.buffer.members import add_member_routes
from asyncrl.services.buffer.messages import documented, groups_response, read
from asyncrl.services.http.app import (
    STATUSES,
    add_hot_route,
    caller_of,
    create_app,
    error_response,
    serve,
)
from asyncrl.services.http.metrics import add_metrics
from asyncrl.services.http.room import Room
from asyncrl.services.http.waiting import Waiters
from asyncrl.types import FailureClass, Group, Lease

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE_THREADS = 4
PUTS_AT_ONCE = 16
PUT_BYTES_AT_ONCE = 2 * MAX_GROUP_BYTES
"""How much memory the bodies of puts may take together."""
READ_AT_ONCE_BYTES = 2 * 2**20
"""As many bytes are read in less time than a thread takes to wake up."""
ABANDONED_AT_ONCE = 1000
REFUSED_PUTS = 8
"""As many groups of one worker may be no groups before it is quarantined."""
REAP_EVERY_S = 1.0
RETURN_MEMORY_EVERY_S = 10.0
STALL_S = 5.0
"""A reaper that is this late was suspended with its process, so that no renewals could arrive either."""
OWN_STATUSES: dict[type[Exception], int] = {UnknownLeaseError: 404, LeaseGoneError: 410}


@dataclass(frozen=True, slots=True)
class Finished:
    """A group that was sent: decoded, and its body as bytes, or in a file already, and then b""."""

    group: Group
    body: bytes
    staged: FileBody | None = None


class BufferService:
    """The ledger, the requests that wait for it, and the puts of this pass of the event loop.

    Large groups are decoded, written and read in threads; the ledger is used in the event loop's only.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.stopping = asyncio.Event()
        self.leases: Waiters[Lease] = Waiters(self.stopping)
        self.takes: Waiters[Taken] = Waiters(self.stopping)
        self.peeks: Waiters[Peeked] = Waiters(self.stopping)
        self._puts: list[tuple[Finished, asyncio.Future[PutResult]]] = []
        self._asked: list[tuple[str, str, asyncio.Future[Lease | None]]] = []
        """Workers that ask for a lease, and the names of their calls."""
        self._refused: Counter[str] = Counter()
        """Groups of each worker that were refused."""
        self.threads = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="buffer-files")
        self.room = Room(PUTS_AT_ONCE, PUT_BYTES_AT_ONCE)
        """Room for puts whose bodies are in memory. Others wait in their connections."""

    def counts(self) -> dict[str, Any]:
        """Return the ledger's counts, and how many calls wait for a lease, for a batch and for groups of one."""
        return self.ledger.stats() | {
            "waiting_for_lease": len(self.leases),
            "waiting_for_batch": len(self.takes),
            "waiting_for_groups": len(self.peeks),
        }

    def check_holder(self, request: Request, lease: str) -> None:
        """Raise `ConflictError` when the caller is a worker and the lease another's."""
        caller = caller_of(request)
        if caller.role == "worker":
            self.ledger.check_holder(lease, caller.name)

    def note_refused(self, request: Request, error: InputError) -> None:
        """Count a group that no worker of ours would send. A worker that goes on sending such ones is quarantined."""
        caller = caller_of(request)
        if caller.role != "worker":
            return
        self._refused[caller.name] += 1
        if self._refused[caller.name] == REFUSED_PUTS:
            reason = f"{REFUSED_PUTS} of its groups were refused, the last one since {str(error)[:500]}"
            log.error("worker %s is quarantined: %s", caller.name, reason)
            self.ledger.quarantine(caller.name, reason)
            self.changed()

    def changed(self) -> None:
        """Answer waiting requests that can be answered now."""
        self.leases.pump(self.ledger.batch)
        self.takes.pump()
        self.peeks.pump()

    async def receive(self, request: Request, body: bytes) -> Finished:
        """Decode a group, check its sender and write it down ahead of `put`, which must follow."""
        if len(body) < LARGE_BYTES:
            finished = Finished(decode_group(body), body)
        else:
            # In one go: a thread that is woken up twice costs as much as the decoding.
            finished = await asyncio.get_running_loop().run_in_executor(self.threads, self._written, body)
        return await self._checked(request, finished)

    async def _checked(self, request: Request, finished: Finished) -> Finished:
        try:
            if hold_files(finished.group):
                # The trainer decodes them, too, and has nobody left to refuse them to.
                await asyncio.get_running_loop().run_in_executor(self.threads, check_files, finished.group)
            self.check_holder(request, finished.group.id)
        except Exception:
            self._discard(finished)
            raise
        return finished

    async def receive_file(self, request: Request, file: int, size: int) -> Finished | None:
        """`receive` for a group that its sender has written to a file; None when there is no such file."""
        holder = str(caller_of(request))
        finished = await asyncio.get_running_loop().run_in_executor(
            self.threads, self._claimed, holder, file, size
        )
        return None if finished is None else await self._checked(request, finished)

    def _claimed(self, holder: str, file: int, size: int) -> Finished | None:
        body = self.ledger.claim(holder, file, size)
        if body is None:
            return None
        try:
            group = decode_group(body)
        except Exception:
            self.ledger.free(file)
            raise
        return _finished(group, body, self.ledger.stage(group, body, file))

    def _written(self, body: bytes) -> Finished:
        group = decode_group(body)
        return _finished(group, body, self.ledger.stage(group, body))

    def _discard(self, finished: Finished) -> None:
        if finished.staged is not None:
            self.ledger.discard(finished.staged)

    async def discard(self, received: Sequence[Any]) -> None:
        """Give up groups that `receive` returned or will return, in tasks, and that are not put."""
        tasks = [one for one in received if isinstance(one, asyncio.Task)]
        for one in [*received, *await asyncio.gather(*tasks, return_exceptions=True)]:
            if isinstance(one, Finished):
                self._discard(one)

    async def read(self, groups: Sequence[Stored]) -> list[bytes | None]:
        """See `Ledger.read`."""
        if sum(group.size for group in groups if isinstance(group, FileBody)) <= READ_AT_ONCE_BYTES:
            return self.ledger.read(groups)
        loop = asyncio.get_running_loop()
        parts = [groups[thread::FILE_THREADS] for thread in range(FILE_THREADS)]
        found = await asyncio.gather(
            *(loop.run_in_executor(self.threads, self.ledger.read, part) for part in parts)
        )
        return [found[place % FILE_THREADS][place // FILE_THREADS] for place in range(len(groups))]

    async def lease(self, worker: str, name: str, wait_s: float, request: Request) -> Lease | None:
        """Lease a group, in one transaction with all others that are asked for in this pass of the event loop; None
        when there is none within `wait_s`. name: of the call."""
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._grant)
        answer: asyncio.Future[Lease | None] = loop.create_future()
        self._asked.append((worker, name, answer))
        found = await answer
        if found is not None or wait_s <= 0:
            return found
        return await self.leases.get(lambda: self.ledger.lease(worker, request=name), wait_s, request)

    def _grant(self) -> None:
        asked, self._asked = self._asked, []
        results: list[Lease | Exception | None] = [None] * len(asked)
        # Behind those that wait already nobody is served.
        if not len(self.leases):
            try:
                with self.ledger.batch():
                    results = [self._lease_one(worker, name) for worker, name, _ in asked]
            except Exception as error:
                results = [error] * len(asked)
        for (_, _, answer), result in zip(asked, results, strict=True):
            _settle(answer, result)

    def _lease_one(self, worker: str, name: str) -> Lease | Exception | None:
        try:
            return self.ledger.lease(worker, request=name)
        except UnavailableError:
            raise
        except AsyncRLError as error:
            return error

    def put(self, finished: Finished) -> asyncio.Future[PutResult]:
        """Put a group in one transaction with all others of this pass of the event loop."""
        loop = asyncio.get_running_loop()
        if not self._puts:
            loop.call_soon(self._flush)
        answer: asyncio.Future[PutResult] = loop.create_future()
        self._puts.append((finished, answer))
        return answer

    def _flush(self) -> None:
        puts, self._puts = self._puts, []
        results: list[PutResult | Exception]
        try:
            if len(puts) == 1:
                results = [self._put_one(puts[0][0])]
            else:
                with self.ledger.batch():
                    results = [self._put_one(finished) for finished, _ in puts]
        except Exception as error:
            results = [error] * len(puts)
        for finished, _ in puts:
            self._discard(finished)
        for (_, answer), result in zip(puts, results, strict=True):
            _settle(answer, result)
        self.changed()

    def _put_one(self, finished: Finished) -> PutResult | Exception:
        """Put a group. What it makes raise is its own refusal, whatever that is: its part of the transaction is undone,
        and the groups beside it are put."""
        try:
            return self.ledger.put(finished.group, finished.body, finished.staged)
        except (UnavailableError, sqlite3.OperationalError):
            # The disk's, and so everybody's.
            raise
        except AsyncRLError as error:
            return error
        except Exception as error:
            if outage(error):
                raise
            return _refused(finished.group.id, error)

    async def reap(self) -> None:
        """Expire leases until cancelled, also through outages of the disk."""
        last, outages = now_s(), OutageLog(log, "leases that end")
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            now = now_s()
            with outages.lived_through():
                if now - last > REAP_EVERY_S + STALL_S:
                    self.ledger.restart_leases(now)
                elif self.ledger.expire(now):
                    self.changed()
                # Not during an outage: no renewals can be written then, either.
                last = now

    async def return_memory(self) -> None:
        """Return what bursts of large groups have left, until cancelled."""
        while True:
            await asyncio.sleep(RETURN_MEMORY_EVERY_S)
            await asyncio.to_thread(return_freed_memory)


def create_buffer_app(ledger: Ledger, credentials: Credentials) -> FastAPI:
    """Return the HTTP app over an open ledger. `credentials` are the run's, from which joining processes get theirs."""
    service = BufferService(ledger)

    @asynccontextmanager
    async def open_ledger() -> AsyncIterator[None]:
        yield
        service.threads.shutdown()
        ledger.close()

    background = {"lease reaper": service.reap, "freed memory": service.return_memory}
    access = credentials.access("buffer")
    app = create_app(
        "asyncrl buffer",
        access,
        ROLES,
        messages.MAX_BODY_BYTES,
        OWN_STATUSES,
        background,
        open_ledger,
        larger_bodies=dict.fromkeys(("/v1/put", "/v1/put_many"), MAX_GROUP_BYTES),
    )
    app.state.stopping = service.stopping
    _add_planning(app, service)
    _add_leases(app, service)
    _add_groups(app, service)
    _add_steps(app, service)
    _add_status(app, service)
    add_hook_routes(app, ledger, service.changed)
    add_member_routes(app, credentials)
    return app


def _add_planning(app: FastAPI, service: BufferService) -> None:
    ledger = service.ledger

    @app.post("/v1/tasks", openapi_extra=documented(messages.AddTasks))
    async def add_tasks(request: Request) -> dict[str, int]:
        """Plan tasks in order; known ids are left as they are."""
        body = await read(request, messages.AddTasks)
        added = ledger.add_tasks([task_from_map(task, f"tasks[{i}]") for i, task in enumerate(body.tasks)])
        service.changed()
        return {"added": added}

    @app.post("/v1/plan/close", openapi_extra=documented(messages.ClosePlan))
    async def close_plan(request: Request) -> dict[str, int]:
        """Declare the plan complete."""
        body = await read(request, messages.ClosePlan)
        abandoned = 0
        # A million at once would keep everybody waiting for seconds.
        while part := ledger.close_plan(body.abandon, ABANDONED_AT_ONCE):
            abandoned += part
            await asyncio.sleep(0)
        service.changed()
        return {"abandoned": abandoned}

    @app.post("/v1/pause", openapi_extra=documented(messages.Pause))
    async def pause(request: Request) -> dict[str, bool]:
        """Stop or resume granting leases."""
        body = await read(request, messages.Pause)
        ledger.pause(body.paused)
        service.changed()
        return {"paused": body.paused}

    @app.post("/v1/staleness_limit", openapi_extra=documented(messages.StalenessLimit))
    async def staleness_limit(request: Request) -> dict[str, int]:
        """Admit groups under another staleness limit from now on."""
        body = await read(request, messages.StalenessLimit)
        ledger.set_staleness_limit(body.limit)
        service.changed()
        return {"limit": body.limit}

    @app.post("/v1/reclaim", openapi_extra=documented(messages.Worker))
    async def reclaim(request: Request) -> dict[str, int]:
        """End the leases of a worker that has restarted."""
        body = await read(request, messages.Worker)
        _check_name(request, body.worker)
        lost = ledger.reclaim(body.worker)
        service.changed()
        return {"lost": lost}

    @app.post("/v1/quarantine", openapi_extra=documented(messages.Quarantine))
    async def quarantine(request: Request) -> dict[str, int]:
        """Refuse a worker further leases and plan its untaken groups again."""
        body = await read(request, messages.Quarantine)
        moved = ledger.quarantine(body.worker, body.reason)
        service.changed()
        return {"pending_again": moved}

    @app.post("/v1/readmit", openapi_extra=documented(messages.Worker))
    async def readmit(request: Request) -> dict[str, str]:
        """Let a quarantined worker have leases again."""
        body = await read(request, messages.Worker)
        return {"was": ledger.readmit(body.worker)}

    @app.post("/v1/readmit_users", openapi_extra=documented(messages.Engine))
    async def readmit_users(request: Request) -> dict[str, list[str]]:
        """Let workers have leases again that were quarantined for the fault of an engine."""
        body = await read(request, messages.Engine)
        return {"workers": ledger.readmit_users(body.engine)}


def _add_leases(app: FastAPI, service: BufferService) -> None:
    ledger = service.ledger

    async def lease(request: Request) -> Response:
        body = await read(request, messages.LeaseCall)
        _check_name(request, body.worker)
        found = await service.lease(body.worker, body.request, body.wait_s, request)
        if found is None:
            return JSONResponse({"lease": None, "reason": ledger.why_no_lease() or "busy"})
        return JSONResponse({"lease": lease_to_map(found), "reason": ""})

    add_hot_route(app, "/v1/lease", lease)

    @app.post("/v1/renew", openapi_extra=documented(messages.OneLease))
    async def renew(request: Request) -> dict[str, float]:
        """Extend a lease."""
        body = await read(request, messages.OneLease)
        service.check_holder(request, body.lease)
        return {"expires_in_s": ledger.renew(body.lease)}

    @app.post("/v1/release", openapi_extra=documented(messages.OneLease))
    async def release(request: Request) -> dict[str, str]:
        """Give a lease back unused."""
        body = await read(request, messages.OneLease)
        service.check_holder(request, body.lease)
        state = ledger.release(body.lease)
        service.changed()
        return {"state": state}

    @app.post("/v1/fail", openapi_extra=documented(messages.Fail))
    async def fail(request: Request) -> dict[str, str]:
        """Give a lease back because the environment or the infrastructure failed."""
        body = await read(request, messages.Fail)
        service.check_holder(request, body.lease)
        state = ledger.fail(body.lease, FailureClass(body.failure), body.error)
        service.changed()
        return {"state": state}


def _add_groups(app: FastAPI, service: BufferService) -> None:
    ledger = service.ledger

    async def put(request: Request) -> Response:
        async with service.room.of(_body_bytes(request)):
            finished = await receive_one(request, await request.body())
            try:
                if not isinstance(finished, Finished):
                    raise finished
                return JSONResponse(_result_to_map(await service.put(finished)))
            except InputError as error:
                service.note_refused(request, error)
                raise

    async def put_many(request: Request) -> Response:
        """Each group is answered for itself: its result, or its error."""
        async with service.room.of(_body_bytes(request)):
            return await put_all(request, await received(request))

    async def reserve(request: Request) -> Response:
        """Files for large groups, which a worker on this machine writes itself instead of sending them."""
        body = await read(request, messages.Reserve)
        return JSONResponse({"files": ledger.reserve(str(caller_of(request)), body.count)})

    async def put_files(request: Request) -> Response:
        """As `put_many`, for groups in such files; those that are not found are to be sent."""
        body = await read(request, messages.PutFiles)
        size = sum(one.size for one in body.files)
        if size > MAX_GROUP_BYTES:
            raise InputError(f"files: must have at most {MAX_GROUP_BYTES} bytes together")
        async with service.room.of(size):
            found = await asyncio.gather(*(receive_file(request, one) for one in body.files))
            return await put_all(request, found)

    async def put_all(request: Request, received: Sequence[Finished | AsyncRLError | None]) -> Response:
        answers = [service.put(one) if isinstance(one, Finished) else one for one in received]
        await asyncio.wait([a for a in answers if isinstance(a, asyncio.Future)] or [_done()])
        for answer in answers:
            error = answer.exception() if isinstance(answer, asyncio.Future) else answer
            if isinstance(error, InputError):
                service.note_refused(request, error)
        return JSONResponse({"results": [_answer_to_map(a) for a in answers]})

    async def received(request: Request) -> list[Finished | AsyncRLError]:
        """Large groups are written while those behind them arrive."""
        found: list[Finished | AsyncRLError | asyncio.Task[Finished | AsyncRLError]] = []
        try:
            async for body in messages.group_bodies(request.stream()):
                one = receive_one(request, body)
                found.append(asyncio.create_task(one) if len(body) >= LARGE_BYTES else await one)
            return [await one if isinstance(one, asyncio.Task) else one for one in found]
        except BaseException:
            await service.discard(found)
            raise

    async def receive_one(request: Request, body: bytes) -> Finished | AsyncRLError:
        try:
            return await service.receive(request, body)
        except AsyncRLError as error:
            return error
        except Exception as error:
            return _refused("of an unknown lease", error)

    async def receive_file(request: Request, one: messages.Written) -> Finished | AsyncRLError | None:
        try:
            return await service.receive_file(request, one.file, one.size)
        except AsyncRLError as error:
            return error
        except Exception as error:
            return _refused("of an unknown lease", error)

    add_hot_route(app, "/v1/put", put)
    add_hot_route(app, "/v1/put_many", put_many)
    add_hot_route(app, "/v1/reserve", reserve)
    add_hot_route(app, "/v1/put_files", put_files)


def _add_steps(app: FastAPI, service: BufferService) -> None:
    ledger = service.ledger

    async def take(request: Request) -> Response:
        body = await read(request, messages.Take)

        def attempt() -> Taken | None:
            # On every put: the groups are looked at only if there is a batch among them.
            return ledger.take_unread(body.step) if ledger.answers(body.step) else None

        end = now_s() + body.wait_s
        while True:
            taken = ledger.take_unread(body.step)
            if taken.groups is None:
                left_s = max(0.0, end - now_s())
                taken = await service.takes.get(attempt, left_s, request) or ledger.take_unread(body.step)
            if taken.groups is None or body.files:
                return groups_response(taken.groups, taken.awaited)
            found = await service.read(taken.groups)
            whole = [one for one in found if one is not None]
            if len(whole) == len(found):
                return groups_response(whole)
            lost = ledger.lose(taken.groups, found)
            log.warning(
                "step %d: %d groups were lost with their files and are planned again", body.step, lost
            )
            service.changed()

    add_hot_route(app, "/v1/take", take)

    @app.get("/v1/bodies")
    async def bodies() -> dict[str, str]:
        """Where large groups are, for processes that find the same folder on their machine."""
        folder, proof = ledger.shared()
        return {"folder": folder, "proof": proof}

    @app.post("/v1/peek", openapi_extra=documented(messages.Peek))
    async def peek(request: Request) -> Response:
        """Groups of the step's batch that are ready and not in `seen`, as msgpack; nothing is taken."""
        body = await read(request, messages.Peek)

        def attempt() -> Peeked | None:
            peeked = ledger.peek(body.step, body.seen)
            return peeked if peeked.groups or peeked.complete else None

        peeked = await service.peeks.get(attempt, body.wait_s, request) or ledger.peek(body.step, body.seen)
        groups = [group for group in await service.read(peeked.groups) if group is not None]
        content = pack({"groups": groups, "complete": peeked.complete})
        return Response(content, media_type=messages.MSGPACK)

    @app.post("/v1/drop", openapi_extra=documented(messages.Drop))
    async def drop(request: Request) -> dict[str, int]:
        """Set groups of a taken batch aside."""
        body = await read(request, messages.Drop)
        return {"dropped": ledger.drop(body.step, body.leases, body.reason)}

    @app.post("/v1/reject", openapi_extra=documented(messages.Reject))
    async def reject(request: Request) -> dict[str, list[str]]:
        """Give a taken batch back and quarantine the workers that leased these groups of it."""
        body = await read(request, messages.Reject)
        workers = ledger.reject(body.step, body.leases, body.reason, body.engines)
        service.changed()
        return {"workers": workers}

    @app.post("/v1/fail_taken", openapi_extra=documented(messages.FailTaken))
    async def fail_taken(request: Request) -> dict[str, int]:
        """Give a taken batch back and count these groups of it as lost attempts."""
        body = await read(request, messages.FailTaken)
        again = ledger.fail_taken(body.step, body.leases, body.reason)
        service.changed()
        return {"pending_again": again}

    @app.post("/v1/commit", openapi_extra=documented(messages.Version))
    async def commit(request: Request) -> dict[str, int]:
        """Account for a published version."""
        body = await read(request, messages.Version)
        if ledger.commit(body.version):
            service.changed()
        return {"version": ledger.version}

    @app.post("/v1/rollback", openapi_extra=documented(messages.Version))
    async def rollback(request: Request) -> dict[str, int]:
        """Forget what came after a version."""
        body = await read(request, messages.Version)
        moved = ledger.rollback_to(body.version)
        service.changed()
        return {"version": ledger.version, "pending_again": moved}

    @app.post("/v1/replan", openapi_extra=documented(messages.Version))
    async def replan(request: Request) -> dict[str, int]:
        """Plan what is in flight again."""
        body = await read(request, messages.Version)
        moved = ledger.replan(body.version)
        service.changed()
        return {"version": ledger.version, "pending_again": moved}


def _add_status(app: FastAPI, service: BufferService) -> None:
    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        """The ledger's counts."""
        return service.counts()

    add_metrics(app, _Metrics(service), description="The counts for Prometheus.")


class _Metrics:
    """Exports the ledger's counts to Prometheus."""

    def __init__(self, service: BufferService) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        stats = self.service.counts()
        for name, value in stats.items():
            if isinstance(value, int | float):
                yield GaugeMetricFamily(f"asyncrl_buffer_{name}", f"{name} in the ledger", value=float(value))
        for name, label in (("dropped_by_reason", "reason"), ("failed_by_class", "failure")):
            family = GaugeMetricFamily(f"asyncrl_buffer_{name}", f"{name} in the ledger", labels=[label])
            for key, value in stats[name].items():
                family.add_metric([key], value)
            yield family


def _finished(group: Group, body: bytes, staged: FileBody | None) -> Finished:
    return Finished(group, body if staged is None else b"", staged)


def _refused(group: str, error: Exception) -> AsyncRLError:
    """Return the refusal of a group that makes the service raise what no check has foreseen. What this machine lacks is
    not the group's fault, nor its worker's."""
    if outage(error):
        return as_told(error)
    log.error("group %s is refused: it cannot be dealt with", group, exc_info=error)
    return InputError(f"group {group}: cannot be dealt with: {type(error).__name__}")


def _check_name(request: Request, worker: str) -> None:
    caller = caller_of(request)
    if caller.role == "worker" and caller.name != worker:
        raise ConfigError(f"worker: the token is {caller.name!r}'s, it cannot speak for {worker[:64]!r}")


def _body_bytes(request: Request) -> int:
    """Return how large the body will be; as large as any where the sender does not say."""
    return int(request.headers.get("content-length", MAX_GROUP_BYTES))


def _result_to_map(result: PutResult) -> dict[str, Any]:
    return {"outcome": result.outcome, "reason": result.reason, "duplicate": result.duplicate}


def _answer_to_map(answer: asyncio.Future[PutResult] | AsyncRLError | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    error = answer.exception() if isinstance(answer, asyncio.Future) else answer
    if error is None:
        assert isinstance(answer, asyncio.Future)
        return _result_to_map(answer.result())
    if not isinstance(error, AsyncRLError):
        raise error
    return messages.error_to_map(error_response(error, STATUSES | OWN_STATUSES))


def _settle(answer: asyncio.Future[T], result: T | Exception) -> None:
    """Answer a call, unless its client is gone."""
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _done() -> asyncio.Future[Any]:
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class BufferFollower(Follower, Protocol):
    """What follows the ledger of a buffer, and is told of its process."""

    def serving(self, url: str) -> None:
        """The buffer answers at `url`."""
        ...

    def when_replaced(self, act: Callable[[], None]) -> None:
        """Have `act` called once another buffer has taken over what follows."""
        ...


def serve_buffer(
    ledger: str,
    settings: LedgerSettings,
    base_version: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Credentials | None = None,
    ready_file: str | Path | None = None,
    advertise: str = "",
    hooks: Sequence[HookFactory] = (),
    follower: BufferFollower | None = None,
) -> None:
    """Run a buffer until it is stopped. `base_version` is that of the policy the run starts from. follower: has every
    change before it is acknowledged."""
    credentials = credentials or own_credentials()
    opened = Ledger(ledger, settings, base_version, hooks=hooks, follower=follower)
    app = create_buffer_app(opened, credentials)
    serving = None
    if follower is not None:
        serving = follower.serving
        follower.when_replaced(lambda: app.state.request_exit())
    serve(app, host, port, ready_file, serving, advertise)
