"""One command from start to end: its input is written, its outputs are kept, nothing of it is left running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_OUTPUT_BYTES = 1 << 20
"""What is kept of standard output and of standard error each; the oldest beyond that is dropped."""
EXIT_POLL_S = 0.1
DRAIN_S = 2.0
"""How long outputs are read once everything that could write to them has been killed."""
END_S = 5.0
MARK = "ASYNCRL_COMMAND"
"""Environment variable that names a command, and so everything it started."""
SWEEPS = 5
"""Searches for processes that left the command's session: one may start another meanwhile."""


class Command:
    """A started command. Its starter must call `end`, even after `run` was cancelled."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self._process = process
        self._mark = f"{MARK}={mark}".encode()
        self._killed = False
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, argv: Sequence[str], environment: Mapping[str, str], cwd: str | None) -> Command:
        """Start it in a session of its own. Raises `OSError`."""
        mark = uuid.uuid4().hex
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, MARK: mark},
            cwd=cwd,
            start_new_session=True,
        )
        return cls(process, mark)

    async def run(self, given: bytes) -> int:
        """Write `given`, read both outputs until the command itself has ended, kill what it left; return its exit code.

        Its children may hold the outputs open for as long as they like.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        reading = [
            asyncio.create_task(_tail(process.stdout, self.out)),
            asyncio.create_task(_tail(process.stderr, self.err)),
        ]
        self._tasks = [*reading, asyncio.create_task(_feed(process.stdin, given))]
        code = await self._exited(reading)
        await self._kill()
        await asyncio.wait(reading, timeout=DRAIN_S)
        return code

    async def end(self) -> None:
        """Kill what is left of it and close the pipes."""
        if not self._killed:
            await self._kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._exited([])
        # Its `wait` would wait for the pipes' other ends; nothing public closes ours.
        self._process._transport.close()  # type: ignore[attr-defined]

    async def _exited(self, reading: Sequence[asyncio.Task[None]]) -> int:
        """Wait for the command alone. In Python 3.11 `Process.wait` also waits for processes that hold its outputs."""
        pause_s = EXIT_POLL_S / 64
        while (code := self._process.returncode) is None:
            if open_ones := [one for one in reading if not one.done()]:
                await asyncio.wait(open_ones, timeout=EXIT_POLL_S)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, EXIT_POLL_S)
        return code

    async def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(_kill_marked, self._mark)
        self._killed = True


async def _feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    with contextlib.suppress(OSError):
        stdin.write(given)
        await stdin.drain()
    stdin.close()


async def _tail(stream: asyncio.StreamReader, kept: bytearray) -> None:
    while chunk := await stream.read(65_536):
        kept += chunk
        del kept[:-MAX_OUTPUT_BYTES]


def _kill_marked(mark: bytes) -> None:
    """Kill the processes that have `mark` in their environment, where there is a `/proc` to look into."""
    for _ in range(SWEEPS):
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    found = True
                    os.kill(int(process.name), signal.SIGKILL)
        if not found:
            return
