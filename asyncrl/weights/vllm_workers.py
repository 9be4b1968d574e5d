"""What extensions have every worker of an engine do in the background, and how its server waits for that.

vLLM mixes `WorkerCalls` into its worker class (`--worker-extension-cls`). Calls return at once, since the engine
decodes between two of them; one that tells of progress says whether what was begun has ended.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from asyncrl.weights.vllm_hooks import Engine

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.25
"""Pauses between two questions to the workers, which answer between two decoding steps."""


class WorkerCalls:
    """Methods for `collective_rpc`; arguments are plain numbers and text. `add_call` adds them."""


def add_call(name: str, call: Callable[..., Any]) -> None:
    """Have every worker of this process answer `collective_rpc` for a name, by a function of it and the arguments."""
    setattr(WorkerCalls, name, call)


class Background:
    """One job at a time, in a thread. A newer one leaves an older behind, which ends by its own deadline."""

    def __init__(self) -> None:
        self.running: threading.Thread | None = None
        self.error = ""

    def begin(self, job: Callable[[], object]) -> None:
        self.error = ""

        def run() -> None:
            error = ""
            try:
                job()
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
            if self.running is threading.current_thread():
                self.error = error

        self.running = threading.Thread(target=run, name="weights", daemon=True)
        self.running.start()

    @property
    def ended(self) -> bool:
        """True when nothing runs."""
        return self.running is None or not self.running.is_alive()


def workers_here(worker: Any) -> int:
    """Return how many of an engine's workers share the file of this one's machine."""
    parallel = worker.vllm_config.parallel_config
    return int(parallel.world_size * parallel.data_parallel_size // parallel.nnodes)


def worker_rank(worker: Any) -> int:
    """Return a worker's number among all of its engine."""
    parallel = worker.vllm_config.parallel_config
    return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)


async def all_ended(engine: Engine, limit_s: float, asked: str, *args: str) -> str:
    """Wait until all workers have ended what they began; return the first error. asked, args: the call that tells."""
    deadline, pause_s = time.monotonic() + limit_s, FIRST_LOOK_S
    while True:
        progress = await engine.collective_rpc(asked, args=args)
        if error := next((error for _, error in progress if error), ""):
            return str(error)
        if all(ended for ended, _ in progress):
            return ""
        if time.monotonic() >= deadline:
            return f"not done within {limit_s:g} s"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_LOOK_S)
