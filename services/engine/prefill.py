"""The prefill half of a request: queues it at an engine that prefills and returns the ticket to what that computed.

    prompt -> queue (prefill_queues) -> engine that prefills --ticket--> engine that decodes, which pulls the KV cache

What fails or is late costs nothing but time: the engine that decodes computes the prompt itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from asyncrl.clock import now_s
from asyncrl.errors import AsyncRLError, InfrastructureError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.prefill_queues import Depth, Kind, adapt, next_step

log = logging.getLogger("asyncrl.engine")

LATE_S = 10.0
"""A prompt is not waited for any longer than this, with its time in the queue."""


class LatePrefill(InfrastructureError):
    """An engine that prefills has not computed a prompt in time."""


@dataclass(slots=True)
class _Waiting:
    request: GenerateRequest
    since: float
    tokens: int
    answer: asyncio.Future[Generated]


@dataclass(slots=True)
class _Queues:
    client: EngineClient
    waiting: dict[Kind, deque[_Waiting]] = field(
        default_factory=lambda: {Kind.SHORT: deque(), Kind.LONG: deque()}
    )
    wanted: Depth = field(default_factory=Depth)
    tokens: int = 0
    """To compute, of prompts that wait or run."""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class PrefillCounts:
    """What has become of prompts so far."""

    handed: int = 0
    """Computed by engines that prefill."""
    failed: int = 0
    late: int = 0
    again: int = 0
    """Of those handed over, computed again by the engine that decodes: the weights had changed, or the pull failed."""


class Prefill:
    """The queues of this process at each engine that prefills. late_s: see `LATE_S`."""

    def __init__(self, late_s: float = LATE_S) -> None:
        self.late_s = late_s
        self.counts = PrefillCounts()
        self._queues: dict[str, _Queues] = {}

    async def ticket(
        self, request: GenerateRequest, kind: Kind, tokens: int, clients: Mapping[str, EngineClient]
    ) -> tuple[bytes, str, InfrastructureError | None]:
        """Have a prompt computed by the engine that has the fewest tokens to compute; return the ticket to it, that
        engine's address and why there is none (then the ticket is b"").

        tokens: to compute. clients: of the engines that may.
        """
        url = min(clients, key=lambda one: (self._queue(clients[one]).tokens, one))
        queues = self._queue(clients[url])
        # Nothing is sampled from what is dropped: the seed is for the engine that decodes.
        prompt = replace(request, id=f"{request.id}/prefill", max_tokens=1, seed=None, prefill=True)
        waiting = _Waiting(prompt, now_s(), tokens, asyncio.get_running_loop().create_future())
        queues.waiting[kind].append(waiting)
        queues.tokens += tokens
        queues.came.set()
        if queues.task is None or queues.task.done():
            queues.task = asyncio.ensure_future(self._run(queues))
        try:
            generated = await asyncio.wait_for(waiting.answer, self.late_s)
        except TimeoutError:
            self.counts.late += 1
            log.warning("engine %s: no prefill within %g s", url, self.late_s)
            return b"", url, LatePrefill(f"engine {url}: no prefill within {self.late_s:g} s")
        except AsyncRLError as error:
            self.counts.failed += 1
            log.warning("no prefill: %s", error)
            known = error if isinstance(error, InfrastructureError) else None
            return b"", url, known or InfrastructureError(f"engine {url}: {error}")
        finally:
            queues.tokens -= tokens
        if generated.ticket:
            self.counts.handed += 1
        else:
            self.counts.failed += 1
        return generated.ticket, url, None

    async def close(self) -> None:
        """Stop all queues; who waits gets an error."""
        tasks = [queues.task for queues in self._queues.values() if queues.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queues in self._queues.values():
            for one in (*queues.waiting[Kind.SHORT], *queues.waiting[Kind.LONG]):
                one.answer.cancel()

    def _queue(self, client: EngineClient) -> _Queues:
        found = self._queues.get(client.url)
        if found is None or found.client is not client:
            # An engine that joins under this address again has a client of its own.
            found = self._queues[client.url] = _Queues(client)
        return found

    async def _run(self, queues: _Queues) -> None:
        """Run batches until both queues are empty."""
        while True:
            for queue in queues.waiting.values():
                # Those that nobody waits for any more.
                for _ in range(len(queue)):
                    one = queue.popleft()
                    if not one.answer.done():
                        queue.append(one)
            times = {kind: [one.since for one in queue] for kind, queue in queues.waiting.items()}
            if not any(times.values()):
                return
            step = next_step(times[Kind.SHORT], times[Kind.LONG], now_s(), queues.wanted)
            if step.kind is Kind.NONE:
                queues.came.clear()
                await _at_most(queues.came, step.wait_s)
                continue
            batch = [queues.waiting[step.kind].popleft() for _ in range(step.count)]
            if step.kind is Kind.SHORT:
                queues.wanted = adapt(queues.wanted, len(batch))
            await asyncio.gather(*(self._one(queues.client, one) for one in batch))

    async def _one(self, client: EngineClient, waiting: _Waiting) -> None:
        sampled = asyncio.ensure_future(client.generate(waiting.request))
        await asyncio.wait({sampled, waiting.answer}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.answer.done():
            # It is late: the engine need not go on.
            sampled.cancel()
            await asyncio.gather(sampled, return_exceptions=True)
        elif sampled.cancelled():
            waiting.answer.set_exception(InfrastructureError(f"engine {client.url} left"))
        elif (error := sampled.exception()) is not None:
            waiting.answer.set_exception(error)
        else:
            waiting.answer.set_result(sampled.result())


async def _at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
