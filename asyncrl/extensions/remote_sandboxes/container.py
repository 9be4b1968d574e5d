"""Sandboxes behind a connection: a container or machine per session, whose programs are attached as streams."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from asyncrl.errors import AsyncRLError, ConflictError
from asyncrl.extensions.remote_sandboxes.output import BoundedOutput
from asyncrl.extensions.remote_sandboxes.shell_files import ShellFiles
from asyncrl.extensions.remote_sandboxes.stream_process import StreamProcess
from asyncrl.sandbox.jail import files
from asyncrl.sandbox.protocol import WORKDIR, ExecResult, Guarantee, Probe, SandboxProcess, SandboxSpec

# Init of a container: reaps orphans, and continues when a sweep kills its child.
INIT = ["/bin/sh", "-c", "trap : CHLD; while :; do sleep 3600 & wait $!; done"]
SWEEP = ["/bin/sh", "-c", "kill -9 -1"]
# An engine may lose the output of a program that leaves input unread when it ends: Podman stops forwarding at once when
# its monitor closes the connection. So what is left is read after the program, which has no part in it.
READ_THE_REST = '"$@"; status=$?; cat >/dev/null; exit $status'
READ_BY_LENGTH = f'n=$1; shift; head -c "$n" | {{ {READ_THE_REST}; }}'
GRACE_S = 10.0
PROBE_TIMEOUT_S = 120.0
Take = Callable[[bool, bytes], None]
"""Called with (is it stderr, data)."""


class Attachment(abc.ABC):
    """A program that runs elsewhere."""

    @abc.abstractmethod
    async def send(self, data: bytes) -> None:
        """Write to its stdin."""

    async def send_end(self) -> None:  # noqa: B027 - nothing to do is a fair answer
        """Close its stdin, if the transport can."""

    @abc.abstractmethod
    async def pump(self, take: Take) -> int:
        """Pass its output on until it ends; return its exit status."""

    async def kill(self) -> None:  # noqa: B027
        """Kill it, if the transport can."""

    async def close(self) -> None:  # noqa: B027
        """Close the connection."""


def in_shell(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> list[str]:
    """Return `argv` with its environment and folder, for transports that have neither."""
    pairs = [f"{name}={value}" for name, value in env.items()]
    script = 'cd -- "$1" || exit 126; shift; exec "$@"'
    return ["/usr/bin/env", "-i", *pairs, "/bin/sh", "-c", script, "sh", cwd, *argv]


class ContainerSandbox(ShellFiles):
    """Implements programs over `_attach`, `_create` and `_destroy`, which a provider implements."""

    half_close: ClassVar[bool] = True
    """Whether the transport can signal the end of stdin."""
    sweeps: ClassVar[bool] = True
    """Whether all processes of the user may be killed inside, which also enforces a program's deadline."""

    def __init__(self) -> None:
        super().__init__()
        self._processes: list[StreamProcess] = []
        self._running = 0
        """Running programs; leftovers are killed when there are none."""
        self._alive = False

    @abc.abstractmethod
    async def _create(self) -> None:
        """Start what `self.spec` and `self.limits` describe."""

    @abc.abstractmethod
    async def _destroy(self) -> None:
        """Remove it. Called once, also after a failed `_create`."""

    @abc.abstractmethod
    async def _attach(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdin: bool, timeout_s: float | None
    ) -> Attachment:
        """Start a program."""

    async def _lacking(self) -> tuple[Guarantee, ...]:
        """Guarantees that a running session turns out to lack."""
        return ()

    @classmethod
    async def probe(cls) -> Probe:
        box = cls()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await box.start(SandboxSpec(language="bash"))
                result = await box.exec(["/bin/sh", "-c", "echo works"])
                lacking = await box._lacking()
        except (AsyncRLError, OSError, TimeoutError) as error:
            return Probe(cls.name, False, str(error) or type(error).__name__)
        finally:
            with contextlib.suppress(AsyncRLError, OSError):
                await box.stop()
        works = result.stdout == b"works\n"
        missing = tuple(g for g in Guarantee if g not in cls.guarantees or g in lacking)
        return Probe(cls.name, works, "" if works else f"a test program ended with {result}", missing)

    async def start(self, spec: SandboxSpec) -> None:
        self._accept(spec)
        self._alive = True
        await self._create()

    async def stop(self) -> None:
        if not self._alive:
            return
        for process in self._processes:
            with contextlib.suppress(AsyncRLError):
                await process.kill()
        self._alive = False
        await self._destroy()

    async def _open(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str,
        stdin: bool,
        timeout_s: float | None,
    ) -> Attachment:
        if not self._alive:
            raise ConflictError("the sandbox is not running")
        inner = "/".join([WORKDIR, *files.relative_parts(cwd)])
        return await self._attach(argv, self._environment(env), inner, stdin, timeout_s)

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
        flooded = asyncio.Event()
        output = BoundedOutput(max_output_bytes, flooded.set)
        if stdin:
            script = [READ_THE_REST, "sh"] if self.half_close else [READ_BY_LENGTH, "sh", str(len(stdin))]
            argv = ["/bin/sh", "-c", *script, *argv]
        self._running += 1
        try:
            attachment = await self._open(argv, env, cwd, bool(stdin), timeout_s)
            status, timed_out = await self._exchange(attachment, stdin, output, timeout_s, flooded)
        finally:
            self._running -= 1
        if not self._running and self.sweeps:
            await self._sweep()
        wall_s = time.monotonic() - started
        return ExecResult(
            status,
            output.stdout,
            output.stderr,
            timed_out=timed_out,
            truncated=output.truncated,
            wall_s=wall_s,
        )

    async def _exchange(
        self,
        attachment: Attachment,
        stdin: bytes,
        output: BoundedOutput,
        timeout_s: float,
        flooded: asyncio.Event,
    ) -> tuple[int, bool]:
        """Send its input and take its output; return its status, and whether the deadline came first."""

        async def feed() -> None:
            with contextlib.suppress(OSError, AsyncRLError):
                await attachment.send(stdin)
                await attachment.send_end()

        feeding = asyncio.create_task(feed()) if stdin else None
        pumping = asyncio.create_task(attachment.pump(output.take))
        flood = asyncio.create_task(flooded.wait())
        try:
            done, _ = await asyncio.wait(
                (pumping, flood), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if pumping.done():
                return pumping.result(), False
            await self._end(attachment)
            await asyncio.wait((pumping,), timeout=GRACE_S)
            return 137, not done
        finally:
            tasks = [task for task in (feeding, pumping, flood) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await attachment.close()

    async def _end(self, attachment: Attachment) -> None:
        if self.sweeps:
            await self._sweep()
        else:
            await attachment.kill()

    async def _sweep(self) -> None:
        """Kill every program in the container but its init."""
        if self._alive:
            attachment = await self._open(SWEEP, None, WORKDIR, False, GRACE_S)
            with contextlib.suppress(TimeoutError, AsyncRLError):
                await asyncio.wait_for(attachment.pump(lambda *_: None), GRACE_S)
            await attachment.close()

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = WORKDIR
    ) -> SandboxProcess:
        # stderr joins stdout inside, since two streams would arrive in no defined order.
        merged = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *self._checked(argv)]
        attachment = await self._open(merged, env, cwd, True, None)
        self._running += 1

        async def pump(feed: Callable[[bytes], None]) -> int:
            try:
                return await attachment.pump(lambda _, data: feed(data))
            finally:
                self._running -= 1
                await attachment.close()

        async def end() -> None:
            await self._end(attachment)

        process = StreamProcess(attachment.send, pump, end, self.limits.output_bytes)
        self._processes.append(process)
        return process
