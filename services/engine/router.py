"""One `Generator` over several engines: probes them, sends each request to the one `placement` chooses, fails over.

A generation is idempotent until its answer is used, so a request that an engine fails is sent to the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.clock import now_s
from asyncrl.errors import AsyncRLError, InfrastructureError, InputError
from asyncrl.generation import Generated, GenerateRequest
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.health import EngineHealth
from asyncrl.services.engine.messages import GarbageError
from asyncrl.services.engine.placement import EngineLoad, Health, place
from asyncrl.services.engine.trouble import EngineTrouble

log = logging.getLogger("asyncrl.engine")

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 3.0
MAX_SESSIONS = 65_536
"""Conversations whose engine is remembered; the oldest ones beyond that are placed like new ones."""
DEFAULT_TTL_S = 120.0
"""A conversation is expected to continue within this time where its caller knows no better."""


@dataclass(slots=True)
class _Engine:
    client: EngineClient
    health: EngineHealth
    prefill_tokens: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    kv_tokens: int = 0
    """Size of its KV cache; 0 while unknown."""
    max_model_len: int = 0
    """Longest context with its answer, in tokens; 0 while unknown."""
    others: int = 0
    """Requests that it had from other routers at the last probe."""
    held_tokens: int = 0
    trouble: EngineTrouble = field(default_factory=EngineTrouble)


@dataclass(slots=True)
class _Session:
    url: str
    cached_tokens: int
    """Tokens its engine has in its cache, if nothing evicted them."""
    expires: float
    held_tokens: int = 0
    """The part counted in the engine's `held_tokens`."""
    running: int = 0
    """Calls at its engine now; it does not expire before their answers, however long they take."""


class EngineRouter:
    """Implements `generation.Generator`. A conversation stays at the engine that has its beginning in its cache."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        if not engines:
            raise InputError("a router needs at least one engine")
        self._engines: dict[str, _Engine] = {}
        self._retiring: list[EngineClient] = []
        """The clients of engines that get no new requests, and may still have running ones."""
        self._gone_busy_s = 0.0
        """The busy seconds of engines that are no longer here."""
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._prober: asyncio.Task[None] | None = None
        self.newest = -1
        """Newest policy version that an engine serves."""
        self._newest_since = 0.0
        for client in engines:
            self.join(client)

    @property
    def engines(self) -> list[EngineClient]:
        """The clients of all engines."""
        return [engine.client for engine in self._engines.values()]

    def join(self, client: EngineClient) -> None:
        """Add an engine; conversations that have started stay where they are.

        Another engine at a known address takes the place of the one there, whose running requests finish.
        """
        known = self._engines.get(client.url)
        if known is not None and known.client.token == client.token:
            return
        if known is not None:
            self._forget_cache(client.url)
            self._retiring.append(known.client)
        self._engines[client.url] = _Engine(client, EngineHealth(now_s()))

    async def leave(self, url: str) -> None:
        """Remove an engine; its running requests fail over. Raises `InputError` for the last one."""
        if set(self._engines) == {url}:
            raise InputError(f"{url} is the last engine of this router")
        self._forget_cache(url)
        engine = self._engines.pop(url, None)
        if engine is not None:
            self._gone_busy_s += engine.client.busy_s
            await engine.client.close()

    def _forget_cache(self, url: str) -> None:
        """Note that an engine's cache is gone: one that joins under its address again is a new one."""
        for session in self._sessions.values():
            if session.url == url:
                self._release(session)
                session.cached_tokens = 0

    def retire(self, url: str) -> None:
        """Send an engine no new requests; its running ones finish. Raises `InputError` for the last one."""
        if set(self._engines) == {url}:
            raise InputError(f"{url} is the last engine of this router")
        engine = self._engines.pop(url, None)
        if engine is not None:
            self._retiring.append(engine.client)

    @property
    def busy_s(self) -> float:
        """Seconds for which engines had requests, summed over all that were ever here."""
        return self._gone_busy_s + sum(client.busy_s for client in (*self.engines, *self._retiring))

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn, on another engine when one fails. Raises what the last one raised."""
        self._start_probing()
        failure: AsyncRLError | None = None
        for url in self._order(request):
            engine = self._engines.get(url)
            if engine is None:
                continue
            try:
                return await self._send(engine, request)
            except InfrastructureError as error:
                self._failed(engine, error)
                engine.trouble.failed(now_s(), error, isinstance(error, GarbageError))
                failure = error
        raise failure or InfrastructureError("every engine has left this router")

    def _order(self, request: GenerateRequest) -> list[str]:
        """Return the engines in the order in which they are to be tried."""
        if len(self._engines) == 1:
            # Placement among one says the same, and costs a hash of the context.
            self._expire(now_s())
            return list(self._engines)
        session = self._sessions.get(request.session)
        remembered = session is not None and (session.running > 0 or session.expires > now_s())
        home = session.url if session is not None and remembered else ""
        return place(_key(request), len(request.token_ids), self.loads(), home)

    async def context_limit(self) -> int:
        """Return the longest context with its answer that every engine accepts, in tokens; 0 while unknown."""
        self._start_probing()
        if not any(engine.max_model_len for engine in self._engines.values()):
            await self.probe()
        known = [engine.max_model_len for engine in self._engines.values() if engine.max_model_len]
        return min(known, default=0)

    def hold(self, session: str, num_tokens: int, ttl_s: float) -> None:
        """Announce that a session's context of `num_tokens` is needed again within `ttl_s`; 0: no longer needed.

        Engines have no interface for that, so the router sends new conversations elsewhere while the cache of an engine
        is reserved.
        """
        found = self._sessions.get(session)
        if found is None:
            return
        self._release(found)
        if ttl_s <= 0:
            del self._sessions[session]
            return
        found.expires = now_s() + ttl_s
        engine = self._engines.get(found.url)
        if engine is not None:
            found.held_tokens = num_tokens
            engine.held_tokens += num_tokens

    def loads(self) -> list[EngineLoad]:
        """Every engine as placement sees it now."""
        now = now_s()
        self._expire(now)
        return [
            EngineLoad(
                url,
                engine.health.health(now, self.newest, self._newest_since),
                engine.client.in_flight + engine.others,
                engine.waiting,
                engine.prefill_tokens,
                engine.kv_usage,
                engine.held_tokens / engine.kv_tokens if engine.kv_tokens else 0.0,
            )
            for url, engine in self._engines.items()
        ]

    def status(self) -> list[dict[str, Any]]:
        """One map per engine, for status pages."""
        return [
            {
                "url": load.url,
                "health": load.health.value,
                "version": self._engines[load.url].health.version,
                "requests": load.requests,
                "waiting": load.waiting,
                "kv_usage": load.kv_usage,
                "held": load.held,
                "sessions": sum(s.url == load.url for s in self._sessions.values()),
            }
            for load in self.loads()
        ]

    def troubles(self) -> list[dict[str, Any]]:
        """Return what is wrong with each engine that serves no requests: `url`, `sound_engines` (the number of the
        others with which nothing is) and what `EngineTrouble.described` says."""
        now = now_s()
        found = {url: engine.trouble.described(now) for url, engine in self._engines.items()}
        sound = sum(one is None for one in found.values())
        return [{"url": url, "sound_engines": sound, **one} for url, one in found.items() if one is not None]

    async def close(self) -> None:
        """Stop probing and close all clients."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in (*self.engines, *self._retiring)))

    async def probe(self) -> None:
        """Probe every engine once."""
        await asyncio.gather(*(self._probe(engine) for engine in list(self._engines.values())))

    async def _send(self, engine: _Engine, request: GenerateRequest) -> Generated:
        session = self._sessions.get(request.session)
        cached = session.cached_tokens if session is not None and session.url == engine.client.url else 0
        prefill = max(0, len(request.token_ids) - cached)
        engine.prefill_tokens += prefill
        settled = self._settle(request, engine.client.url)
        settled.running += 1
        try:
            generated = await engine.client.generate(request)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._engines.get(engine.client.url) is not engine and not (task and task.cancelling()):
                raise InfrastructureError(f"engine {engine.client.url} left") from None
            raise
        finally:
            engine.prefill_tokens -= prefill
            settled.running -= 1
            await self._close_retired()
        engine.trouble.served()
        version = int(generated.versions[-1]) if len(generated.versions) else engine.health.version
        self._saw(engine, version)
        if session := self._sessions.get(request.session):
            session.cached_tokens = len(request.token_ids) + len(generated.token_ids)
            session.expires = max(session.expires, now_s() + DEFAULT_TTL_S)
        return generated

    async def _close_retired(self) -> None:
        """Close the clients of retired engines whose last request has ended."""
        for client in [one for one in self._retiring if not one.in_flight]:
            self._retiring.remove(client)
            self._gone_busy_s += client.busy_s
            await client.close()

    def _settle(self, request: GenerateRequest, url: str) -> _Session:
        """Remember the engine of a session; the context that it reserved is in use now."""
        if not request.session:
            return _Session(url, 0, 0.0)
        session = self._sessions.pop(request.session, None)
        if session is not None:
            self._release(session)
        if session is None or session.url != url:
            session = _Session(url, 0, 0.0)
        session.expires = now_s() + DEFAULT_TTL_S
        self._sessions[request.session] = session
        if len(self._sessions) > MAX_SESSIONS:
            self._release(self._sessions.popitem(last=False)[1])
        return session

    def _release(self, session: _Session) -> None:
        engine = self._engines.get(session.url)
        if engine is not None:
            engine.held_tokens -= session.held_tokens
        session.held_tokens = 0

    def _expire(self, now: float) -> None:
        """Forget sessions that did not continue in time, oldest call first; a few at a time, to keep this cheap."""
        for name in [n for n, _ in zip(self._sessions, range(8), strict=False)]:
            if self._sessions[name].running:
                # It moves behind the others, so that it does not hide them.
                self._sessions.move_to_end(name)
            elif self._sessions[name].expires < now:
                self._release(self._sessions.pop(name))

    async def _probe(self, engine: _Engine) -> None:
        in_flight = engine.client.in_flight
        try:
            state = await engine.client.state(PROBE_TIMEOUT_S)
            self._saw(engine, state["version"])
            engine.trouble.probed(now_s())
        except AsyncRLError as error:
            self._failed(engine, error)
            garbage = isinstance(error, GarbageError)
            if garbage or _refused(error):
                # One that does not answer in time may be computing.
                engine.trouble.failed(now_s(), error, garbage)
            return
        engine.waiting = state["waiting"]
        all_requests = state["running"] + engine.waiting
        engine.others = max(0, all_requests - max(in_flight, engine.client.in_flight))
        engine.kv_usage = float(state["kv_usage"])
        engine.kv_tokens, engine.max_model_len = state["kv_tokens"], state["max_model_len"]

    def _failed(self, engine: _Engine, error: BaseException) -> None:
        """Note that an engine has failed; one that sends garbage is set apart for a while."""
        engine.health.failed(refused=_refused(error))
        if isinstance(error, GarbageError):
            now = now_s()
            known = engine.health.set_apart(now)
            engine.health.garbled(now)
            if not known:
                log.warning("%s; it is used for nothing where there is another engine", error)

    def _saw(self, engine: _Engine, version: int) -> None:
        now = now_s()
        engine.health.answered(now, version)
        # Not the newest ever seen: a run that resumes takes all engines back to the version of its checkpoint.
        alive = (e.health for e in self._engines.values() if e.health.health(now) is not Health.DEAD)
        # No engine may be alive, if this one has left and the others died before its last answer.
        newest = max((health.version for health in alive), default=self.newest)
        if newest != self.newest:
            self.newest, self._newest_since = newest, now

    def _start_probing(self) -> None:
        if self._prober is None:
            self._prober = asyncio.ensure_future(self._keep_probing())

    async def _keep_probing(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_EVERY_S)


def _key(request: GenerateRequest) -> bytes:
    """Return the key that places a new conversation: its prompt, so that siblings of a group share their prefix."""
    return hashlib.blake2b(
        np.ascontiguousarray(request.token_ids, dtype="<i4").tobytes(), digest_size=16
    ).digest()


def _refused(error: BaseException) -> bool:
    """Whether the connection to the engine was refused."""
    return isinstance(error.__cause__, ConnectionError | OSError) and not isinstance(
        error.__cause__, TimeoutError
    )
