"""An engine that only takes time: continuous batching, a prefix cache, weights that change in the middle of a turn.

The running sequences advance in lockstep, a token an iteration. So one counter of iterations tells when each of them
ends, and a change of the batch costs a logarithm of its size, however long the sequences are. The cache that they fill
is read once an iteration, so an iteration takes longer than the one before.

A sequence starts where the cache has room for what it and the running ones have in the middle of their turns. An engine
starts it earlier still, and computes one again when the cache is full after all.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.simulation.costs import EngineCosts
from asyncrl.generation import Generated, GenerateRequest

ROUNDING = 1e-6
"""Iterations by which a sequence may end early."""


@dataclass(slots=True)
class _Request:
    asked: GenerateRequest
    answer: asyncio.Future[Generated]
    started: float = 0.0
    """Iterations counted when it was admitted."""
    cached: int = 0
    gone: bool = False

    @property
    def context(self) -> int:
        """Its tokens at the end."""
        return len(self.asked.token_ids) + self.asked.max_tokens

    @property
    def expected(self) -> float:
        """Its tokens at the middle of the turn."""
        return len(self.asked.token_ids) + self.asked.max_tokens / 2


@dataclass(slots=True)
class EngineTimes:
    """Seconds that an engine has spent."""

    busy_s: float = 0.0
    paused_s: float = 0.0
    """For new weights, or while the trainer has the turn."""
    dead_s: float = 0.0
    tools_s: float = 0.0
    """Idle while episodes ran, which waited for their tools."""
    limit_s: float = 0.0
    """Idle while no episode ran: the staleness limit admits no further group, or there is no task."""
    sequence_s: float = 0.0
    """Running sequences, integrated over time."""
    tokens: int = 0


@dataclass(slots=True)
class SimulatedEngine:
    """Answers what a router asks of an engine. A request's `max_tokens` is how many tokens it samples."""

    url: str
    costs: EngineCosts
    version: int = 0
    in_flight: int = 0
    dead: bool = False
    needed: bool = False
    """Whether episodes run. Set by `set_needed`."""
    times: EngineTimes = field(default_factory=EngineTimes)
    _speed: float = 1.0
    _paused: int = 0
    _draining: bool = False
    _iterations: float = 0.0
    _prefill_s: float = 0.0
    """Seconds of prefill that the next iterations wait for."""
    _at: float = 0.0
    _context: float = 0.0
    """Tokens of running sequences in the cache, at the iterations counted."""
    _expected: float = 0.0
    """Those that the same sequences have at the middle of their turns: what is taken to be free is the rest."""
    _running: list[tuple[float, int, _Request]] = field(default_factory=list)
    _waiting: list[tuple[int, int, _Request]] = field(default_factory=list)
    _cached: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Tokens in the prefix cache by session, and by prompt."""
    _idle_cached: int = 0
    _published: list[tuple[float, int]] = field(default_factory=list)
    """Versions taken over while sequences ran, with the iterations counted then."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _timer: asyncio.TimerHandle | None = None
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._empty.set()

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample `request.max_tokens` tokens. Raises `InfrastructureError` where the engine is dead or behind."""
        if self.dead:
            raise InfrastructureError(f"{self.url} is down") from ConnectionRefusedError()
        if self.version < request.min_version:
            raise InfrastructureError(f"{self.url} serves {self.version}, needed is {request.min_version}")
        one = _Request(request, asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting, (request.order, next(self._numbers), one))
        self.in_flight += 1
        self._change()
        try:
            return await one.answer
        finally:
            self.in_flight -= 1
            if not one.answer.done() or one.answer.cancelled():
                one.gone = True
                self._change()

    async def request(self, name: str, timeout_s: float = 0.0) -> dict[str, Any]:
        """Answer a probe. Raises `InfrastructureError` where the engine is dead."""
        assert name == "state", name
        if self.dead:
            raise InfrastructureError(f"{self.url} is down") from ConnectionRefusedError()
        return {
            "version": self.version,
            "running": len(self._running),
            "waiting": len(self._waiting),
            "kv_usage": min(1.0, self._context / self.costs.kv_tokens),
            "kv_tokens": self.costs.kv_tokens,
        }

    async def close(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def set_speed(self, speed: float) -> None:
        """Compute at this share of the full speed from now on."""
        if speed != self._speed:
            self._advance()
            self._speed = speed
            self._set_timer()

    def set_needed(self, needed: bool) -> None:
        """Say whether episodes run, of which the engine has nothing to do at the moment."""
        self._advance()
        self.needed = needed

    def pause(self) -> None:
        """Stop computing until `resume` has been called as often."""
        self._advance()
        self._paused += 1
        self._set_timer()

    def resume(self) -> None:
        """See `pause`."""
        self._advance()
        self._paused -= 1
        self._change()

    async def take_over(self, version: int, swap_s: float, finish_requests: bool, keep_kv: bool) -> None:
        """Change to a version. With `finish_requests` running sequences end first, and none starts meanwhile."""
        if self.dead:
            return
        self._draining = finish_requests
        try:
            if finish_requests:
                await self._empty.wait()
            await self._swap(version, swap_s, keep_kv)
        finally:
            # Also where the trainer dies meanwhile.
            self._draining = False
            self._change()

    async def _swap(self, version: int, swap_s: float, keep_kv: bool) -> None:
        self.pause()
        try:
            await asyncio.sleep(swap_s)
            self._set_version(version, keep_kv)
        finally:
            self.resume()

    def die(self) -> None:
        """Fail everything in flight and refuse what comes."""
        self._advance()
        self.dead = True
        running = [one for _, _, one in self._running]
        waiting = [one for _, _, one in self._waiting]
        self._running, self._waiting, self._prefill_s = [], [], 0.0
        self._context = self._expected = 0.0
        self._forget()
        self._empty.set()
        for one in running + waiting:
            if not one.answer.done():
                one.answer.set_exception(InfrastructureError(f"{self.url} died"))
        self._set_timer()

    def restart(self, version: int) -> None:
        """Serve again, the given version."""
        self._advance()
        self.dead, self._draining, self.version = False, False, version

    def settle_times(self) -> EngineTimes:
        """Return what has been spent up to now."""
        self._advance()
        return self.times

    def _set_version(self, version: int, keep_kv: bool) -> None:
        self.version = version
        if self._running:
            self._published.append((self._iterations, version))
        else:
            self._published = []
        if not keep_kv:
            self._forget()
            sampled = sum(
                len(one.asked.token_ids) + self._iterations - one.started for _, _, one in self._running
            )
            self._prefill_s += sampled * self.costs.prefill_token_s

    def _forget(self) -> None:
        self._cached.clear()
        self._idle_cached = 0

    def _change(self) -> None:
        """Account for the time that has passed, end and start sequences, and wait for the next end."""
        self._advance()
        self._end()
        self._start()
        self._set_timer()

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        passed, self._at = now - self._at, now
        if passed <= 0:
            return
        times = self.times
        if self.dead:
            times.dead_s += passed
        elif self._paused:
            times.paused_s += passed
        elif not self._running and self.needed:
            times.tools_s += passed
        elif not self._running:
            times.limit_s += passed
        else:
            times.busy_s += passed
            times.sequence_s += passed * len(self._running)
            worked = passed * self._speed
            prefill = min(worked, self._prefill_s)
            self._prefill_s -= prefill
            done = self._iterations_in(worked - prefill)
            self._iterations += done
            self._context += done * len(self._running)

    def _growth_s(self) -> float:
        """How much longer each iteration is than the one before, for the tokens that are sampled."""
        return len(self._running) * self.costs.context_token_s

    def _iteration_s(self) -> float:
        return self.costs.iteration(len(self._running), self._context)

    def _iterations_in(self, seconds: float) -> float:
        """Return how many iterations the running sequences get in so many seconds, each longer than the last."""
        first, growth = self._iteration_s(), self._growth_s()
        if growth <= 0:
            return seconds / first
        # first * n + growth * n**2 / 2 = seconds, in a form that is exact for small growth.
        return 2 * seconds / (first + math.sqrt(first * first + 2 * growth * seconds))

    def _seconds_of(self, iterations: float) -> float:
        """Return how long so many iterations take: the opposite of `_iterations_in`."""
        return iterations * (self._iteration_s() + self._growth_s() * iterations / 2)

    def _end(self) -> None:
        while self._running and (
            self._running[0][0] <= self._iterations + ROUNDING or self._running[0][2].gone
        ):
            one = heapq.heappop(self._running)[2]
            self._context = max(
                0.0, self._context - len(one.asked.token_ids) - (self._iterations - one.started)
            )
            self._expected -= one.expected
            if not one.gone and not one.answer.done():
                one.answer.set_result(self._answer(one))
                self._keep(one.asked.session, one.context)
        if not self._running:
            self._published = []
            self._context = self._expected = 0.0
            self._empty.set()

    def _answer(self, one: _Request) -> Generated:
        """The tokens of a turn, each with the version that was in force when it was sampled."""
        count, first = one.asked.max_tokens, self.version
        during = [(at, version) for at, version in self._published if at > one.started]
        if during:
            earlier = [version for at, version in self._published if at <= one.started]
            first = earlier[-1] if earlier else during[0][1] - 1
        versions = np.full(count, first, np.int32)
        for at, version in during:
            versions[min(count, math.ceil(at - one.started)) :] = version
        self.times.tokens += count
        zeros = np.zeros(count, np.int32)
        return Generated(zeros, zeros.astype(np.float32), versions, "stop", one.cached)

    def _start(self) -> None:
        while self._waiting and not self._paused and not self._draining and not self.dead:
            one = self._waiting[0][2]
            if one.gone:
                heapq.heappop(self._waiting)
                continue
            full = self._running and self._expected + one.expected > self.costs.kv_tokens
            if full or len(self._running) >= self.costs.max_num_seqs:
                return
            heapq.heappop(self._waiting)
            one.started = self._iterations
            one.cached = self._found(one)
            self._prefill_s += (len(one.asked.token_ids) - one.cached) * self.costs.prefill_token_s
            self._context += len(one.asked.token_ids)
            self._expected += one.expected
            end = self._iterations + one.asked.max_tokens
            heapq.heappush(self._running, (end, next(self._numbers), one))
            self._empty.clear()

    def _found(self, one: _Request) -> int:
        """Return how much of a context is in the prefix cache; its prompt is from now on, for its siblings."""
        tokens = one.asked.token_ids
        prompt = f"prompt {int(tokens[0])}" if len(tokens) else ""
        found = self._cached.pop(one.asked.session, 0)
        self._idle_cached -= found
        if not found:
            found = min(len(tokens), self._cached.get(prompt, 0))
            if not found:
                self._keep(prompt, len(tokens))
        # The last token is computed in any case: its logits are what is sampled from.
        block = self.costs.block_tokens
        return min(found, max(0, len(tokens) - 1)) // block * block

    def _keep(self, name: str, tokens: int) -> None:
        """Keep a context in the prefix cache; the oldest that nothing runs on make room."""
        self._idle_cached += tokens - self._cached.pop(name, 0)
        self._cached[name] = tokens
        while self._cached and self._idle_cached + self._context > self.costs.kv_tokens:
            self._idle_cached -= self._cached.popitem(last=False)[1]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._paused and not self.dead:
            left = self._prefill_s + self._seconds_of(self._running[0][0] - self._iterations)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, left / self._speed), self._change)
