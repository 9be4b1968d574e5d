"""A backend that makes every mistake the attack suite looks for: nothing is isolated, bounded or cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from asyncrl.sandbox.base import BaseSandbox
from asyncrl.sandbox.protocol import (
    ExecResult,
    Guarantee,
    Probe,
    ReadEnd,
    ReadResult,
    SandboxProcess,
    SandboxSpec,
)

PATIENCE_S = 9.0
"""How much later than asked it ends a program. The attack suite would wait for ever for one that never does."""


class NaiveProcess(SandboxProcess):
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, data: bytes, timeout_s: float = 10.0) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def read_until(self, marker: bytes, timeout_s: float, max_bytes: int | None = None) -> ReadResult:
        assert self._process.stdout is not None
        return ReadResult(await self._process.stdout.readuntil(marker), ReadEnd.MARKER)

    async def wait(self, timeout_s: float) -> int:
        from asyncrl.errors import DeadlineError

        try:
            return await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError as error:
            raise DeadlineError("still runs") from error

    async def kill(self) -> None:
        self._process.kill()


class NaiveSandbox(BaseSandbox):
    name: ClassVar[str] = "naive"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset()
    renews: ClassVar[bool] = True
    leaked: ClassVar[list[int]] = []
    spawned: ClassVar[list[asyncio.subprocess.Process]] = []

    def __init__(self) -> None:
        super().__init__()
        self._path = ""

    @classmethod
    async def probe(cls) -> Probe:
        return Probe(cls.name, True, missing=tuple(Guarantee))

    async def start(self, spec: SandboxSpec) -> None:
        self._accept(spec)
        self._path = tempfile.mkdtemp(prefix="asyncrl-naive-")
        os.makedirs(f"{self._path}/work")
        self.workdir = f"{self._path}/work"

    async def _spawn(self, argv: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
        # Left open, and handed down to every program.
        self.leaked.append(os.open("/dev/null", os.O_RDONLY))
        os.set_inheritable(self.leaked[-1], True)
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=options.get("stderr", asyncio.subprocess.PIPE),
            cwd=self.workdir,
            close_fds=False,
            limit=1 << 30,
        )
        self.spawned.append(process)
        return process

    @classmethod
    async def clean_up(cls) -> None:
        """What it never does by itself; for the sake of the tests that come after."""
        for process in cls.spawned:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process._transport.close()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        for fd in cls.leaked:
            os.close(fd)
        cls.spawned.clear()
        cls.leaked.clear()

    async def _run(
        self,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int,
        env: Mapping[str, str] | None,
        cwd: str,
    ) -> ExecResult:
        started = time.monotonic()
        process = await self._spawn(argv)
        reading = asyncio.create_task(process.communicate(stdin))
        done, _ = await asyncio.wait((reading,), timeout=min(timeout_s, 2.0) + PATIENCE_S)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            stdout = b"DONE\n" if process.returncode == 0 else b""
            late = process.returncode in (None, -signal.SIGKILL)
            return ExecResult(137, stdout, timed_out=late, wall_s=time.monotonic() - started)
        stdout, stderr = reading.result()
        return ExecResult(process.returncode or 0, stdout, stderr, wall_s=time.monotonic() - started)

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = "/work"
    ) -> SandboxProcess:
        return NaiveProcess(await self._spawn(argv, stderr=asyncio.subprocess.STDOUT))

    async def read(self, path: str, max_bytes: int = 0) -> bytes:
        def read() -> bytes:
            with open(os.path.join(self.workdir, path), "rb") as file:
                return file.read()

        from asyncrl.errors import InputError

        if path == "fifo":
            return b""  # Would wait for ever in a thread nobody can end.
        try:
            return await asyncio.to_thread(read)
        except (OSError, ValueError) as error:
            raise InputError(str(error)) from error

    async def write(self, path: str, data: bytes) -> None:
        from asyncrl.errors import InputError

        try:
            with open(os.path.join(self.workdir, path), "wb") as file:
                file.write(data)
        except OSError as error:
            raise InputError(str(error)) from error

    async def renew(self) -> NaiveSandbox:
        # Its files and programs are the next session's.
        renewed = copy.copy(self)
        self._path = ""
        return renewed

    async def stop(self) -> None:
        # Programs still running are forgotten, and so are their pipes.
        shutil.rmtree(self._path, ignore_errors=True)
