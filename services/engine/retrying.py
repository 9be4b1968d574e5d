"""A generator that waits for engines to come back instead of failing the episode."""

from __future__ import annotations

import asyncio
import logging

from asyncrl.clock import now_s
from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.outage_log import OutageLog

log = logging.getLogger("asyncrl.rollout")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0


class RetryingGenerator:
    """Repeats a turn that no engine could sample, for `wait_s` at most. A turn has no effect until it is used."""

    def __init__(self, generator: Generator, wait_s: float) -> None:
        self.generator = generator
        self.wait_s = wait_s
        self._outage = OutageLog(log, "no engine answers")

    async def generate(self, request: GenerateRequest) -> Generated:
        """See `Generator`. Raises what the last attempt raised."""
        deadline = now_s() + self.wait_s
        pause_s = FIRST_PAUSE_S
        failing = worked = False
        try:
            while True:
                try:
                    generated = await self.generator.generate(request)
                    worked = True
                    return generated
                except InfrastructureError as error:
                    if now_s() + pause_s > deadline:
                        raise
                    self._outage.failed(error, failing)
                    failing = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if failing:
                self._outage.ended(worked)
