"""An engine on loan: it stands on the trainer's GPUs and samples only while that waits for a batch.

    trainer waits     wake    memory comes back, the newest weights are loaded, requests are taken
    it has its batch  rest    requests are refused, those that run are cut, memory is given up

The answer to a request that was cut has the tokens sampled so far and ends with `MOVED`: whoever sent it has another
engine sample the rest. Weights that are committed meanwhile are noted and loaded on waking (`Served.commit`).
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from asyncrl.errors import InputError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from asyncrl.weights.vllm_served import Served

log = logging.getLogger("asyncrl.weights")

LENT = "ASYNCRL_LENT"
"""Environment variable: "1" for an engine on loan."""


class Loan:
    """Whether an engine on loan sleeps. It does from its start: the trainer wakes it when it first waits."""

    def __init__(self, lent: bool) -> None:
        self.lent = lent
        self.asleep = lent
        """Whether requests are refused, and new weights noted instead of loaded."""
        self._gave_up = False
        """Whether the memory has been given up; an engine that has just started holds it."""
        self._computed = 0
        """Tokens that the engine had computed when it was last woken."""

    async def set(self, asleep: bool, served: Served, engine: AsyncLLM, computed: int) -> dict[str, Any]:
        """Put the engine to sleep or wake it; return the seconds that took and the tokens computed while awake.

        May be repeated. computed: tokens that the engine has computed since its start. Raises `InputError` for an
        engine that is not on loan, or where its weights cannot be read.
        """
        if not self.lent:
            raise InputError("this engine is not on loan (placement.lent)")
        start = time.perf_counter()
        tokens = computed - self._computed if asleep and not self.asleep else 0
        await (self._rest(served, engine) if asleep else self._wake(served, engine, computed))
        return {"took_s": time.perf_counter() - start, "tokens": tokens}

    async def _rest(self, served: Served, engine: AsyncLLM) -> None:
        # At once: what arrives while this waits for weights that are being loaded is for other engines.
        self.asleep = True
        if served.committing.locked():
            # A commit may be waiting until the running requests have ended.
            await engine.pause_generation(mode="abort", clear_cache=False)
        async with served.committing:
            if self._gave_up:
                return
            await engine.sleep(level=1, mode="abort")
            self._gave_up = True

    async def _wake(self, served: Served, engine: AsyncLLM, computed: int) -> None:
        async with served.committing:
            if not self.asleep:
                return
            # Also what has never slept: a commit that was overtaken may have left it paused.
            await engine.wake_up()
            self._gave_up = False
            await served.load_noted(engine)
            self._computed = computed
            self.asleep = False


def loan_from_environment() -> Loan:
    """Return this server's loan, as `services.engine` has configured it."""
    return Loan(os.environ.get(LENT) == "1")
