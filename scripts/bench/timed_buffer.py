"""`asyncrl serve buffer` with a clock in it, for `load_buffer.py`: what a call takes in the service, and why.

    python scripts/bench/timed_buffer.py OUT serve buffer OPTION...

At the end OUT has, in seconds: for each path how long calls took from when their body was read to their answer ("lease
at once" are those that do not wait for a slot), and how late the event loop was at ticks of `TICK_S`, split by Linux's
own account of the thread into running, waiting for a processor, and neither (the disk).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from array import array
from collections import defaultdict
from pathlib import Path
from typing import Any

from asyncrl.cli import main
from asyncrl.services.buffer import service

TICK_S = 0.005
KEPT = 200_000
AT_ONCE = b"\xa6wait_s\xcb" + bytes(8)
"""What the body of a call has that does not wait."""

# In arrays: as objects they would be a part of the memory that is measured.
calls: dict[str, array[float]] = defaultdict(lambda: array("d"))
late = array("d")
"""Of each tick: seconds late, of these on a processor, and waiting for one."""


class Timed:
    """ASGI middleware that times the calls."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.state = app.state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, name = time.perf_counter(), scope["path"].removeprefix("/v1/")

        async def received() -> Any:
            nonlocal begun, name
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                begun = time.perf_counter()
                if name == "lease" and AT_ONCE in message["body"]:
                    name = "lease at once"
            return message

        await self.app(scope, received, send)
        if len(calls[name]) < KEPT:
            calls[name].append(time.perf_counter() - begun)


def of_thread() -> tuple[float, float]:
    """Return the seconds for which this thread has run, and has waited for a processor."""
    ran, waited, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


async def tick() -> None:
    """Record how late the event loop is, until cancelled."""
    while len(late) < 3 * KEPT:
        start, (ran, waited) = time.perf_counter(), of_thread()
        await asyncio.sleep(TICK_S)
        seconds = time.perf_counter() - start - TICK_S
        ran_now, waited_now = of_thread()
        late.extend((seconds, ran_now - ran, waited_now - waited))


reap, serve = service.BufferService.reap, service.serve


async def reap_and_tick(self: service.BufferService) -> None:
    ticking = asyncio.create_task(tick())
    try:
        await reap(self)
    finally:
        ticking.cancel()


def serve_timed(app: Any, *args: Any, **kwargs: Any) -> None:
    serve(Timed(app), *args, **kwargs)  # type: ignore[arg-type]


if __name__ == "__main__":
    service.BufferService.reap, service.serve = reap_and_tick, serve_timed  # type: ignore[method-assign]
    try:
        code = main(sys.argv[2:])
    finally:
        ticks = list(zip(late[::3], late[1::3], late[2::3], strict=True))
        taken = {name: list(seconds) for name, seconds in calls.items()}
        Path(sys.argv[1]).write_text(json.dumps({"calls": taken, "late": ticks}))
    os._exit(code)
