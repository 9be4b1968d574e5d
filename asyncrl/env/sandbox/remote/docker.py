"""A container per session, through the socket of Docker or Podman. No image is ever pulled."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from asyncrl.env.sandbox.jail import files
from asyncrl.env.sandbox.protocol import (
    WORKDIR,
    ExecResult,
    Guarantee,
    Probe,
    SandboxProcess,
    SandboxSpec,
)
from asyncrl.env.sandbox.remote.docker_api import DockerApi, find_socket, read_frames
from asyncrl.env.sandbox.remote.output import BoundedOutput
from asyncrl.env.sandbox.remote.shell_files import ShellFiles
from asyncrl.env.sandbox.remote.stream_process import StreamProcess
from asyncrl.errors import AsyncRLError, ConflictError, InfrastructureError

DEFAULT_IMAGE = "python:3.12-slim"
IMAGE_VARIABLE = "ASYNCRL_SANDBOX_IMAGE"
UIDS = range(20_000, 60_000)
"""Inside what rootless engines map. Each session draws one, because engines count processes by user id as well."""
# Init of the container: reaps what is orphaned, and goes on when a sweep ends its child.
INIT = ["/bin/sh", "-c", "trap : CHLD; while :; do sleep 3600 & wait $!; done"]
SWEEP = ["/bin/sh", "-c", "kill -9 -1"]
GRACE_S = 10.0
OURS = (WORKDIR, "/tmp", "/run", "/var/tmp")
# What the kernel really applies, whatever the engine was asked for: memory bounds, then mounts.
LOOK = """
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
cat /proc/mounts
"""


class DockerSandbox(ShellFiles):
    name: ClassVar[str] = "docker"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {
        Guarantee.HOST_KERNEL,
        Guarantee.FRESH_UID,
        # The engine's own filter applies, which allows namespaces to some.
        Guarantee.KERNEL_SURFACE,
    }

    def __init__(self) -> None:
        super().__init__()
        self._api: DockerApi | None = None
        self._container = ""
        uid = UIDS.start + secrets.randbelow(len(UIDS))
        self._user = f"{uid}:{uid}"
        self._processes: list[StreamProcess] = []
        self._running = 0
        """Programs under way; leftovers are swept when there is none."""

    @classmethod
    async def probe(cls) -> Probe:
        box = cls()
        try:
            async with asyncio.timeout(60):
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

    def _configuration(self) -> dict[str, Any]:
        spec, limits = self.spec, self.limits
        third = limits.disk_bytes // 3
        ulimits = {
            "nofile": limits.open_files,
            "nproc": limits.processes + 4,
            "fsize": limits.file_bytes,
            "cpu": math.ceil(limits.cpu_s),
            "core": 0,
        }
        options = "rw,nosuid,nodev,mode={},size={}"
        folders = dict.fromkeys((WORKDIR, "/tmp"), "exec," + options.format(1777, third))
        # Podman makes these writable in read-only containers, without a bound unless one is given.
        folders |= dict.fromkeys(("/run", "/var/tmp"), options.format(755, 4096))
        binds = [f"{m.source}:{m.target}:{'rw' if m.writable else 'ro'}" for m in spec.mounts]
        return {
            "Image": spec.image or os.environ.get(IMAGE_VARIABLE, DEFAULT_IMAGE),
            "Entrypoint": INIT,
            "Cmd": [],
            "User": self._user,
            "WorkingDir": "/",
            "Hostname": "sandbox",
            "NetworkDisabled": True,
            "HostConfig": {
                "NetworkMode": "none",
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "PidsLimit": limits.processes + 4,
                "Memory": limits.memory_bytes,
                "MemorySwap": limits.memory_bytes,
                "ShmSize": third,
                "Tmpfs": folders,
                "Binds": binds,
                "Ulimits": [{"Name": k, "Soft": v, "Hard": v} for k, v in ulimits.items()],
                "AutoRemove": True,
            },
        }

    async def start(self, spec: SandboxSpec) -> None:
        self._accept(spec)
        self._api = DockerApi(find_socket())
        created = await self._api.call("POST", "/containers/create", self._configuration())
        self._container = created["Id"]
        await self._api.call("POST", f"/containers/{self._container}/start")

    async def _lacking(self) -> tuple[Guarantee, ...]:
        """What this engine did not do though it was asked to: some ignore what they do not know."""
        lines = (await self.exec(["/bin/sh", "-c", LOOK])).text.splitlines()
        found: list[Guarantee] = []
        if str(self.limits.memory_bytes) not in lines:
            found.append(Guarantee.MEMORY_LIMIT)
        mounts = [line.split() for line in lines if line.count(" ") == 5]
        writable = [m for m in mounts if m[2] == "tmpfs" and m[3].startswith("rw") and m[1].startswith(OURS)]
        # The number of files is bounded by the memory their inodes take.
        if found or any("size=" not in m[3] for m in writable):
            found.append(Guarantee.DISK_LIMIT)
        return tuple(found)

    async def stop(self) -> None:
        for process in self._processes:
            await process.kill()
        api, self._api = self._api, None
        if api is None:
            return
        try:
            if self._container:
                await api.call("DELETE", f"/containers/{self._container}?force=true&v=true")
        except InfrastructureError as error:
            if " 404 " not in str(error) and " 409 " not in str(error):
                raise
        finally:
            await api.close()

    # -- programs ---------------------------------------------------------------------------------------------

    async def _attach(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str, stdin: bool
    ) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
        if self._api is None or not self._container:
            raise ConflictError("the sandbox is not running")
        body = {
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in self._environment(env).items()],
            "WorkingDir": "/".join([WORKDIR, *files.relative_parts(cwd)]),
            "User": self._user,
        }
        created = await self._api.call("POST", f"/containers/{self._container}/exec", body)
        reader, writer = await self._api.attach(created["Id"])
        return created["Id"], reader, writer

    async def _exit_code(self, exec_id: str) -> int:
        assert self._api is not None
        for _ in range(50):
            state = await self._api.call("GET", f"/exec/{exec_id}/json")
            if not state["Running"]:
                return int(state["ExitCode"])
            await asyncio.sleep(0.02)
        raise InfrastructureError("container engine: the program's output ended but the program did not")

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
        self._running += 1
        try:
            flooded = asyncio.Event()
            output = BoundedOutput(max_output_bytes, flooded.set)
            exec_id, reader, writer = await self._attach(argv, env, cwd, bool(stdin))
            timed_out = await self._exchange(reader, writer, stdin, output, timeout_s, flooded)
            returncode = 137 if timed_out or flooded.is_set() else await self._exit_code(exec_id)
        finally:
            self._running -= 1
        if not self._running:
            await self._sweep()
        # The engine says 126 or 127 itself for a program that cannot be started.
        wall_s = time.monotonic() - started
        return ExecResult(
            returncode,
            output.stdout,
            output.stderr,
            timed_out=timed_out,
            truncated=output.truncated,
            wall_s=wall_s,
        )

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        stdin: bytes,
        output: BoundedOutput,
        timeout_s: float,
        flooded: asyncio.Event,
    ) -> bool:
        """Give it its input, take its output; whether the deadline came first."""

        async def feed() -> None:
            with contextlib.suppress(OSError):
                writer.write(stdin)
                await writer.drain()
                writer.write_eof()

        feeding = asyncio.create_task(feed())
        reading = asyncio.create_task(read_frames(reader, output.take))
        flood = asyncio.create_task(flooded.wait())
        try:
            done, _ = await asyncio.wait(
                (reading, flood), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not reading.done():
                # The engine cannot end one program of a container, so all of the session's end.
                await self._sweep()
                await asyncio.wait((reading,), timeout=GRACE_S)
            return not done
        finally:
            for task in (feeding, reading, flood):
                task.cancel()
            await asyncio.gather(feeding, reading, flood, return_exceptions=True)
            writer.close()

    async def _sweep(self) -> None:
        """End every program in the container but its init."""
        _, reader, writer = await self._attach(SWEEP, None, WORKDIR, False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(read_frames(reader, lambda *_: None), GRACE_S)
        writer.close()

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = WORKDIR
    ) -> SandboxProcess:
        exec_id, reader, writer = await self._attach(self._checked(argv), env, cwd, True)
        self._running += 1

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        async def pump(feed: Callable[[bytes], None]) -> int:
            try:
                await read_frames(reader, lambda _, data: feed(data))
                return await self._exit_code(exec_id)
            finally:
                self._running -= 1
                writer.close()

        process = StreamProcess(write, pump, self._sweep, self.limits.output_bytes)
        self._processes.append(process)
        return process
