"""Whether an engine's core, the process that schedules and computes, answers its server; without waiting for it.

The core answers between two steps, and a step may take minutes: a large prefill, a compile, weights that are loaded.
The launcher judges by what the core uses of the processor meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from asyncrl.startup import ProcessMeter

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

MEASURED_S = 2.0
"""A core that has been silent for less is not measured: that costs a look at every process."""


class CoreWatch:
    """Asks the core one question at a time."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._question: asyncio.Future[bool] | None = None
        self._meter = ProcessMeter(os.getpid(), descendants_only=True)

    def look(self, engine: AsyncLLM) -> dict[str, Any]:
        """Return `core_silent_s`, for how long the core has owed an answer, and for a silent one `core_cpu_s` and
        `core_bytes`, which it has used and moved with all that it started. Raises the core's error."""
        now = time.monotonic()
        if self._question is None or self._question.done():
            failed = self._question.exception() if self._question is not None else None
            self._asked, self._question = now, asyncio.ensure_future(engine.is_paused())
            # The last question before the end is looked at by nobody, and asyncio would log its error.
            self._question.add_done_callback(lambda done: done.cancelled() or done.exception())
            if failed is not None:
                raise failed
        silent_s = now - self._asked
        if silent_s < MEASURED_S:
            return {"core_silent_s": 0.0}
        return {
            "core_silent_s": round(silent_s, 3),
            "core_cpu_s": round(self._meter.cpu_s(), 3),
            "core_bytes": self._meter.data_bytes(),
        }
