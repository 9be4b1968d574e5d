"""A run's client of the service of shared rollouts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from asyncrl.data.codec import pack
from asyncrl.errors import InputError
from asyncrl.extensions.swarm.messages import MAX_GROUP_BYTES, MAX_GROUPS
from asyncrl.extensions.swarm.protocol import Arrived, Fetched
from asyncrl.services.http.client import HttpClient

CALL_S = 30.0
"""The time limit of one call over a slow link."""
BATCH_BYTES = 4 * MAX_GROUP_BYTES


class SwarmClient:
    """Implements `SwarmService` for the run `run`, which people call `name`. For one thread at a time."""

    def __init__(self, url: str, token: str, run: str, name: str, family: str) -> None:
        self.run, self.name, self.family = run, name, family
        # A call is not repeated: the pool calls again anyway.
        self._http = HttpClient(url, token, 0.0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarm-client", daemon=True)
        self._thread.start()

    def publish(self, bodies: Sequence[bytes]) -> int:
        """See `SwarmService`."""
        stored, size = 0, 0
        batch: list[bytes] = []
        for body in bodies:
            if batch and (size + len(body) > BATCH_BYTES or len(batch) == MAX_GROUPS):
                stored += self._publish(batch)
                batch, size = [], 0
            batch.append(body)
            size += len(body)
        return stored + self._publish(batch)

    def _publish(self, bodies: list[bytes]) -> int:
        answer = self._post("publish", name=self.name, groups=bodies)
        return int(_field(answer, "stored", int))

    def fetch(self, store: str, after: int, count: int) -> Fetched:
        """See `SwarmService`."""
        answer = self._post("fetch", store=store, after=after, count=min(count, MAX_GROUPS))
        found = []
        for one in _field(answer, "groups", list)[:count]:
            fields = (_field(one, "run", str), _field(one, "name", str)[:256], _field(one, "body", bytes))
            if len(fields[2]) <= MAX_GROUP_BYTES:
                found.append(Arrived(*fields))
        return Fetched(_field(answer, "store", str), _field(answer, "last", int), found)

    def check(self) -> None:
        """Ask for a sign of life. Raises `ConfigError` for a token that the service does not know, `InputError`
        where another service answers, else `AsyncRLError`."""
        call = self._http.get("/v1/swarm/status", CALL_S)
        asyncio.run_coroutine_threadsafe(call, self._loop).result(2 * CALL_S)

    def close(self) -> None:
        """Close the connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._http.close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _post(self, path: str, **fields: Any) -> Any:
        body = pack({"run": self.run, "family": self.family, **fields})
        call = self._http.post(f"/v1/swarm/{path}", body, CALL_S)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(2 * CALL_S)


def _field(raw: Any, name: str, kind: type) -> Any:
    """Return a field of an answer. Raises `InputError` for one of another type."""
    value = raw.get(name) if isinstance(raw, dict) else None
    if type(value) is not kind:
        raise InputError(f"the swarm's answer has no {name!r} of type {kind.__name__}")
    return value
