"""A container per session, through the socket of Docker or Podman. No image is ever pulled."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Any, ClassVar

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.remote_sandboxes import warm
from asyncrl.extensions.remote_sandboxes.container import INIT, Attachment, ContainerSandbox, Take
from asyncrl.extensions.remote_sandboxes.docker_api import DockerApi, find_socket, read_frames
from asyncrl.sandbox.protocol import WORKDIR, Guarantee

DEFAULT_IMAGE = "python:3.12-slim"
IMAGE_VARIABLE = "ASYNCRL_SANDBOX_IMAGE"
UIDS = range(20_000, 60_000)
"""Within the range that rootless engines map. Each container draws one, because engines also count processes by user
id."""
OURS = (WORKDIR, "/tmp", "/run", "/var/tmp")
# What the kernel really applies, whatever was requested of the engine: memory limits, then mounts.
LOOK = """
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
cat /proc/mounts
"""


def new_user() -> str:
    """Return `UID:GID` of a container's programs."""
    uid = UIDS.start + secrets.randbelow(len(UIDS))
    return f"{uid}:{uid}"


class DockerAttachment(Attachment):
    def __init__(
        self, api: DockerApi, exec_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._api, self._exec_id, self._reader, self._writer = api, exec_id, reader, writer
        # Where a write fails, as when the program has ended without reading its input, asyncio drops what the same
        # connection has yet to read: the program's output.
        self._input: socket.socket = writer.get_extra_info("socket").dup()
        self._input.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._input, data)

    async def send_end(self) -> None:
        self._input.shutdown(socket.SHUT_WR)

    async def pump(self, take: Take) -> int:
        await read_frames(self._reader, take)
        for _ in range(50):
            state = await self._api.call("GET", f"/exec/{self._exec_id}/json")
            if not state["Running"]:
                return int(state["ExitCode"])
            await asyncio.sleep(0.02)
        raise InfrastructureError("container engine: the program's output ended but the program did not")

    async def close(self) -> None:
        self._input.close()
        self._writer.close()


class DockerSandbox(ContainerSandbox):
    name: ClassVar[str] = "docker"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {
        Guarantee.HOST_KERNEL,
        Guarantee.FRESH_UID,
        # The engine's own filter applies, which allows namespaces to some users.
        Guarantee.KERNEL_SURFACE,
    }

    def __init__(self) -> None:
        super().__init__()
        self._api: DockerApi | None = None
        self._container = self._user = ""

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
        # Podman makes these writable in read-only containers, without a limit unless one is set.
        folders |= dict.fromkeys(("/run", "/var/tmp"), options.format(755, 4096))
        return {
            "Image": spec.image or os.environ.get(IMAGE_VARIABLE, DEFAULT_IMAGE),
            "Entrypoint": INIT,
            "Cmd": [],
            "User": "",
            "WorkingDir": "/",
            "Hostname": "sandbox",
            "NetworkDisabled": True,
            "Labels": {warm.LABEL: warm.owner()},
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
                "Binds": [f"{m.source}:{m.target}:{'rw' if m.writable else 'ro'}" for m in spec.mounts],
                "Ulimits": [{"Name": k, "Soft": v, "Hard": v} for k, v in ulimits.items()],
                "AutoRemove": True,
            },
        }

    async def _create(self) -> None:
        count, path = warm.wanted(), find_socket()
        self._api = DockerApi(path)
        await warm.remove_deserted(self._api, path)
        configuration, pool = self._configuration(), warm.WarmContainers.shared()
        found = await pool.take(self._api, path, configuration) if count else None
        if found is not None:
            self._container, self._user = found.name, found.user
        else:
            self._container, self._user = warm.new_name(), new_user()
            await warm.start(self._api, self._container, {**configuration, "User": self._user})
        if count:
            pool.fill(path, configuration, count, new_user)

    async def _destroy(self) -> None:
        if self._api is None:
            return
        try:
            if self._container:
                await warm.remove(self._api, self._container)
        finally:
            await self._api.close()

    async def _lacking(self) -> tuple[Guarantee, ...]:
        """What this engine did not do although requested: some ignore unknown settings."""
        lines = (await self.exec(["/bin/sh", "-c", LOOK])).text.splitlines()
        found: list[Guarantee] = []
        if str(self.limits.memory_bytes) not in lines:
            found.append(Guarantee.MEMORY_LIMIT)
        mounts = [line.split() for line in lines if line.count(" ") == 5]
        writable = [m for m in mounts if m[2] == "tmpfs" and m[3].startswith("rw") and m[1].startswith(OURS)]
        # The number of files is limited by the memory of their inodes.
        if found or any("size=" not in m[3] for m in writable):
            found.append(Guarantee.DISK_LIMIT)
        return tuple(found)

    async def _attach(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdin: bool, timeout_s: float | None
    ) -> Attachment:
        assert self._api is not None
        body = {
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "WorkingDir": cwd,
            "User": self._user,
        }
        created = await self._api.call("POST", f"/containers/{self._container}/exec", body)
        reader, writer = await self._api.attach(created["Id"])
        return DockerAttachment(self._api, created["Id"], reader, writer)
