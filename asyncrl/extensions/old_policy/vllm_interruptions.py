"""Interruptions: generation is paused before there are new weights, for what the old ones have sampled.

`weights/interrupt` {limit_s, finish_requests} -> generation is paused until the next commit, for `limit_s` at most; the
                    version and the sequences in which it has sampled tokens (`vllm_sampled`)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncrl.extensions.old_policy.vllm_sampled import RENEW_SAMPLED, SAMPLED
from asyncrl.weights.files import WeightFile
from asyncrl.weights.vllm_hooks import Engine, EngineHook, Route
from asyncrl.weights.vllm_served import pause_mode
from asyncrl.weights.vllm_swap import PauseMode, pause

if TYPE_CHECKING:
    from asyncrl.weights.vllm_served import Served

log = logging.getLogger("asyncrl.weights")


class Interruptions(EngineHook):
    """The interruptions of an engine that keeps the sequences which each version samples."""

    def __init__(self, policy: Served) -> None:
        super().__init__(policy)
        self._going: asyncio.Task[None] | None = None
        """What ends an interruption that no new weights end."""
        self._since_s = 0.0
        """When that interruption began, of `time.perf_counter`."""

    def routes(self) -> dict[str, Route]:
        """See `EngineHook`."""
        return {"weights/interrupt": self._interrupt}

    def paused_since(self) -> float | None:
        """See `EngineHook`."""
        return None if self._going is None else self._since_s

    async def swapping(self, engine: Engine, file: WeightFile, options: Mapping[str, Any]) -> None:
        """See `EngineHook`."""
        await engine.engine_core.call_utility_async(RENEW_SAMPLED, file.version)

    def swapped(self) -> None:
        """See `EngineHook`."""
        if self._going is not None:
            self._going.cancel()
        self._going = None

    async def interrupt(self, engine: Engine, mode: PauseMode, limit_s: float) -> dict[str, Any]:
        """Pause generation until new weights are committed, for `limit_s` at most; return the version and all sequences
        in which it has sampled tokens.

        Running requests freeze ("keep") or finish first ("wait"). May be repeated. Raises `UnavailableError`.
        """
        async with self.policy.committing:
            if self._going is None:
                self._since_s = time.perf_counter()
            self.swapped()
            await pause(engine, mode, clear_cache=False)
            self._going = asyncio.ensure_future(self._go_on_after(engine, limit_s))
            version, sequences = await engine.engine_core.call_utility_async(SAMPLED)
            return {"version": version, "sequences": sequences}

    async def _interrupt(self, engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
        return await self.interrupt(engine, pause_mode(body), float(body["limit_s"]))

    async def _go_on_after(self, engine: Engine, limit_s: float) -> None:
        """End an interruption whose trainer may be gone. What is sampled from now on it has not seen."""
        await asyncio.sleep(limit_s)
        async with self.policy.committing:
            self._going = None
            log.warning("no new weights came within %g s of an interruption; generation goes on", limit_s)
            await engine.resume_generation()
