"""What an engine's server waits for that its workers do in the background, while the engine decodes."""

from __future__ import annotations

import asyncio
import time

from asyncrl.weights.vllm_hooks import Engine

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.25
"""Pauses between two questions to the workers, which answer between two decoding steps."""


async def all_ended(engine: Engine, limit_s: float, asked: str = "weights_progress") -> str:
    """Wait until all workers have ended what they began; return the first error. asked: their method that tells."""
    deadline, pause_s = time.monotonic() + limit_s, FIRST_LOOK_S
    while True:
        progress = await engine.collective_rpc(asked)
        if error := next((error for _, error in progress if error), ""):
            return str(error)
        if all(ended for ended, _ in progress):
            return ""
        if time.monotonic() >= deadline:
            return f"not done within {limit_s:g} s"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_LOOK_S)
