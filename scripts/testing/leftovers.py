"""Finds what a run must not leave behind: processes, shared memory, files, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from asyncrl.errors import AsyncRLError
from asyncrl.services.http.client import HttpClient

SHARED_MEMORY = Path("/dev/shm")
LOOK_EVERY_S = 1.0
ENDING_S = 10.0
"""How long processes and their shared memory may take to vanish."""


class SharedMemory(threading.Thread):
    """Remembers which semaphores and segments processes and their descendants had mapped, by inode: a semaphore is
    mapped under a different name. `ancestors` returns the pids of those that there are now."""

    def __init__(self, ancestors: Callable[[], Iterable[int]]) -> None:
        super().__init__(name="shared memory", daemon=True)
        self._ancestors = ancestors
        self._seen: set[int] = set()
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(LOOK_EVERY_S):
            self.look()

    def look(self) -> None:
        """Record what is mapped now."""
        pids: set[int] = set()
        for ancestor in self._ancestors():
            with contextlib.suppress(psutil.NoSuchProcess):
                pids |= {
                    ancestor,
                    *(child.pid for child in psutil.Process(ancestor).children(recursive=True)),
                }
        for pid in pids:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                    # addresses, permissions, offset, device, inode, path
                    fields = line.split(maxsplit=5)
                    if len(fields) == 6 and fields[5].startswith(f"{SHARED_MEMORY}/"):
                        self._seen.add(int(fields[4]))

    def close(self) -> None:
        self._closed.set()
        if self.is_alive():
            self.join(10)

    def left(self) -> list[str]:
        """Return the names that still exist, after a moment in which they may vanish."""
        deadline = time.monotonic() + ENDING_S
        while True:
            found = []
            for entry in os.scandir(SHARED_MEMORY):
                with contextlib.suppress(FileNotFoundError):
                    if entry.inode() in self._seen and entry.is_file():
                        found.append(entry.name)
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)


def processes_left(folder: Path) -> list[str]:
    """Return the processes that name a run's folder, after a moment in which they may end."""
    deadline = time.monotonic() + ENDING_S
    while True:
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or ()
            named = any(str(folder) in word for word in words)
            if named and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(words)[:100]}")
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def files_left(folder: Path, weights_dir: Path, temporary: Path) -> list[str]:
    """Return partial files of the run, its weights, and what its processes left in their temporary folder."""
    found = [str(path) for path in (*folder.rglob("*.partial*"), *temporary.rglob("*")) if not path.is_dir()]
    return [str(weights_dir), *found] if weights_dir.exists() else found


async def sessions_left(url: str, token: str, wait_s: float) -> int:
    """Return how many sessions an environment service holds after a time in which forgotten ones may expire; -1 when it
    does not answer."""
    deadline = time.monotonic() + wait_s
    client, held = HttpClient(url, token, retry_s=0.0), -1
    try:
        while held and time.monotonic() < deadline:
            with contextlib.suppress(AsyncRLError):
                held = (await client.get("/v1/status"))["sessions"]
            await asyncio.sleep(0.5)
        return held
    finally:
        await client.close()
