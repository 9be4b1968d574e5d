"""One `Generator` over several engines: a session keeps its engine, so its prefix cache is used."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence

from asyncrl.clients.engine import EngineClient
from asyncrl.errors import InfrastructureError, InputError
from asyncrl.rollout.generate import Generated, GenerateRequest

SUSPECT_S = 5.0
"""How long an engine that failed a request gets no new ones while another is up."""
MAX_SESSIONS = 65536
"""Sessions whose engine is remembered; beyond that the oldest are placed afresh."""


class EngineRouter:
    """Sends each session to the less loaded of two engines that its id hashes to."""

    def __init__(self, engines: Sequence[EngineClient]) -> None:
        if not engines:
            raise InputError("a router needs at least one engine")
        self.engines = list(engines)
        self._home: dict[str, EngineClient] = {}
        self._suspect_until: dict[str, float] = {}

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn, on another engine when the session's own fails."""
        failure: InfrastructureError | None = None
        for engine in self._candidates(request.session or request.id):
            try:
                return await engine.generate(request)
            except InfrastructureError as error:
                failure = error
                self._suspect_until[engine.url] = time.monotonic() + SUSPECT_S
                self._home.pop(request.session, None)
        assert failure is not None
        raise failure

    async def close(self) -> None:
        """Close all clients."""
        await asyncio.gather(*(engine.close() for engine in self.engines))

    def _candidates(self, session: str) -> list[EngineClient]:
        home = self._home.get(session)
        if home is None or self._suspect(home):
            home = self._place(session)
            self._home[session] = home
            if len(self._home) > MAX_SESSIONS:
                del self._home[next(iter(self._home))]
        return [home, *sorted((e for e in self.engines if e is not home), key=lambda e: e.in_flight)]

    def _place(self, session: str) -> EngineClient:
        up = [e for e in self.engines if not self._suspect(e)] or self.engines
        if len(up) == 1:
            return up[0]
        ranked = sorted(
            up, key=lambda e: hashlib.blake2b(f"{session}/{e.url}".encode(), digest_size=8).digest()
        )
        return min(ranked[:2], key=lambda e: e.in_flight)

    def _suspect(self, engine: EngineClient) -> bool:
        return time.monotonic() < self._suspect_until.get(engine.url, 0.0)
