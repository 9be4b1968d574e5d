"""Where a router sends a request: decisions only, no input or output.

A new conversation hashes to two engines and takes the one with less to do, so that equal prompts meet in one
prefix cache, load stays even, and an engine that joins or leaves moves only the keys that are its own (rendezvous
hashing, Thaler and Ravishankar 1998; the power of two choices, Mitzenmacher 2001). A conversation that has started
stays where its context is cached, unless that engine cannot serve it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

LONG_PROMPT_TOKENS = 2048
"""Prompts of at least this length go to the engine with the fewest tokens to prefill, whatever they hash to."""
PREFILL_TOKENS_PER_REQUEST = 512
"""This many tokens to prefill count as one more request."""
FULL_KV = 0.95
"""Above this share an engine preempts running requests."""
ROOMY_KV = 0.8
BOUND = 1.25
SLACK_REQUESTS = 4
"""Neither of the two candidates is taken when both have more than `BOUND` times the mean and this many more."""


class Health(StrEnum):
    """The health of an engine as its router sees it, best first."""

    HEALTHY = "healthy"
    CATCHING_UP = "catching_up"
    """Serves, but older weights than the others."""
    SUSPECT = "suspect"
    """Failed or does not answer, but not for long."""
    DEAD = "dead"


_ORDER = {health: number for number, health in enumerate(Health)}


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine as a placement sees it."""

    url: str
    health: Health = Health.HEALTHY
    requests: int = 0
    """Requests that it runs or queues, of all its clients."""
    waiting: int = 0
    """Requests it queues."""
    prefill_tokens: int = 0
    """Prompt tokens of requests sent and not answered, less what they should find cached."""
    kv_usage: float = 0.0
    """Share of the KV cache in use by running requests, 0 to 1."""
    held: float = 0.0
    """Share of the KV cache that is reserved for conversations between two calls, 0 to 1."""

    @property
    def load(self) -> float:
        """Its load in requests; a full cache counts as a queue."""
        pressure = max(0.0, self.kv_usage + self.held - ROOMY_KV) / (1.0 - ROOMY_KV)
        work = self.requests + self.waiting + self.prefill_tokens / PREFILL_TOKENS_PER_REQUEST
        return (work + SLACK_REQUESTS * pressure) * (1.0 + pressure)

    @property
    def full(self) -> bool:
        """Whether it queues requests because its cache is full."""
        return self.waiting > 0 and self.kv_usage >= FULL_KV


def hash_order(key: bytes, urls: Iterable[str]) -> list[str]:
    """Return the engines in the order that `key` prefers them. Depends on nothing but key and addresses."""

    def weight(url: str) -> bytes:
        return hashlib.blake2b(key + b"/" + url.encode(), digest_size=8).digest()

    return sorted(urls, key=lambda url: (weight(url), url))


def place(key: bytes, num_tokens: int, engines: Sequence[EngineLoad], home: str = "") -> list[str]:
    """Return the engines to try, best first.

    key: what the conversation hashes by. num_tokens: length of its prompt. home: engine that has its context
    cached, empty for none. Engines that are not healthy come last, the dead at the very end.
    """
    if len(engines) == 1:
        return [engines[0].url]
    by_url = {engine.url: engine for engine in engines}
    best_health = min((engine.health for engine in engines), key=_ORDER.__getitem__)
    up = [engine for engine in engines if engine.health is best_health]
    first = by_url.get(home)
    if first is None or first.health is not best_health or _should_leave(first, up):
        first = _choose(key, num_tokens, up)
    rest = sorted(
        (e for e in engines if e is not first),
        key=lambda e: (_ORDER[e.health], e.load, hash_order(key, [e.url])),
    )
    return [first.url, *(engine.url for engine in rest)]


def _should_leave(home: EngineLoad, up: Sequence[EngineLoad]) -> bool:
    """A conversation moves, and is computed again, only if its engine would have to evict others to serve it."""
    return home.full and any(not e.waiting and e.kv_usage + e.held < ROOMY_KV for e in up)


def _choose(key: bytes, num_tokens: int, up: Sequence[EngineLoad]) -> EngineLoad:
    order = {url: number for number, url in enumerate(hash_order(key, (e.url for e in up)))}
    if num_tokens >= LONG_PROMPT_TOKENS:
        return min(up, key=lambda e: (e.full, e.prefill_tokens, e.load, order[e.url]))
    candidates = [e for e in up if order[e.url] < 2]
    chosen = min(candidates, key=lambda e: (e.load, order[e.url]))
    mean = sum(e.load for e in up) / len(up)
    if chosen.load > BOUND * mean + SLACK_REQUESTS:
        return min(up, key=lambda e: (e.load, order[e.url]))
    return chosen
