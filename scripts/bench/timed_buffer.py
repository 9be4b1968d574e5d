"""`asyncrl serve buffer` with a clock in it, for `load_buffer.py`: what a call takes in the service, and why.

    python scripts/bench/timed_buffer.py OUT serve buffer OPTION...

At the end OUT has, in seconds: for each path how long calls took from when their body was read to their answer ("lease
at once" are those that do not wait for a slot), and how late the event loop was at ticks of `TICK_S`, split by Linux's
own account of the thread into running, waiting for a processor, and neither (the disk). "memory" has the bytes of the
process each `MEMORY_EVERY_S`, by whom they are for.
"""

from __future__ import annotations

import asyncio
import ctypes
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
MEMORY_EVERY_S = 1.0
MEMORY = ("resident", "in use", "free in the heap", "SQLite's")
"""What is recorded of memory, in bytes: what is in use by glibc's account, and SQLite's part of it by its own."""
KEPT = 200_000
AT_ONCE = b"\xa6wait_s\xcb" + bytes(8)
"""What the body of a call has that does not wait."""

# In arrays: as objects they would be a part of the memory that is measured.
calls: dict[str, array[float]] = defaultdict(lambda: array("d"))
late = array("d")
"""Of each tick: seconds late, of these on a processor, and waiting for one."""

memory = array("q")


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


class MallInfo(ctypes.Structure):
    """What glibc's mallinfo2 returns; in bytes but for the numbers of blocks."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


async def weigh() -> None:
    """Record the memory of this process, until cancelled."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    sqlite = ctypes.CDLL("libsqlite3.so.0").sqlite3_memory_used
    sqlite.restype = ctypes.c_int64
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    while len(memory) < KEPT:
        found = mallinfo()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * page_bytes
        memory.extend((resident, found.uordblks + found.hblkhd, found.fordblks, sqlite()))
        await asyncio.sleep(MEMORY_EVERY_S)


reap, serve = service.BufferService.reap, service.serve


async def reap_and_tick(self: service.BufferService) -> None:
    watching = [asyncio.create_task(tick()), asyncio.create_task(weigh())]
    try:
        await reap(self)
    finally:
        for one in watching:
            one.cancel()


def serve_timed(app: Any, *args: Any, **kwargs: Any) -> None:
    serve(Timed(app), *args, **kwargs)  # type: ignore[arg-type]


if __name__ == "__main__":
    service.BufferService.reap, service.serve = reap_and_tick, serve_timed  # type: ignore[method-assign]
    try:
        code = main(sys.argv[2:])
    finally:
        ticks = list(zip(late[::3], late[1::3], late[2::3], strict=True))
        taken = {name: list(seconds) for name, seconds in calls.items()}
        weights = {name: list(memory[place :: len(MEMORY)]) for place, name in enumerate(MEMORY)}
        Path(sys.argv[1]).write_text(json.dumps({"calls": taken, "late": ticks, "memory": weights}))
    os._exit(code)
