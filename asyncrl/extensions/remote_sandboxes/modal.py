"""A sandbox per session at Modal. Needs `pip install modal` and its token."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.remote_sandboxes.container import Attachment, ContainerSandbox, Take, in_shell
from asyncrl.extensions.remote_sandboxes.e2b import NOT_OURS
from asyncrl.extensions.remote_sandboxes.sdk import load
from asyncrl.sandbox.protocol import MIB, WORKDIR, Guarantee

APP = "asyncrl-sandbox"
LIFETIME_S = 3600
"""The provider ends the sandbox by itself after this long."""


class ModalAttachment(Attachment):
    def __init__(self, process: Any) -> None:
        self._process = process

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), MIB):
            self._process.stdin.write(data[start : start + MIB])
            await self._process.stdin.drain.aio()

    async def send_end(self) -> None:
        self._process.stdin.write_eof()
        await self._process.stdin.drain.aio()

    async def pump(self, take: Take) -> int:
        async def drain(stream: Any, is_stderr: bool) -> None:
            async for data in stream:
                take(is_stderr, data)

        try:
            await asyncio.gather(drain(self._process.stdout, False), drain(self._process.stderr, True))
            return int(await self._process.wait.aio())
        except Exception as error:
            raise InfrastructureError(f"modal: {error!r}") from error


class ModalSandbox(ContainerSandbox):
    name: ClassVar[str] = "modal"
    guarantees: ClassVar[frozenset[Guarantee]] = (frozenset(Guarantee) - set(NOT_OURS)) | {
        Guarantee.MEMORY_LIMIT
    }
    takes_mounts: ClassVar[bool] = False
    sweeps: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._box: Any = None

    async def _create(self) -> None:
        library = load("modal", self.name)
        memory_mib = math.ceil((self.limits.memory_bytes + self.limits.disk_bytes) / MIB)
        try:
            app = await library.App.lookup.aio(APP, create_if_missing=True)
            image = (
                library.Image.from_registry(self.spec.image)
                if self.spec.image
                else library.Image.debian_slim()
            )
            self._box = await library.Sandbox.create.aio(
                app=app, image=image, timeout=LIFETIME_S, block_network=True, memory=(memory_mib, memory_mib)
            )
            made = await self._box.exec.aio("mkdir", "-p", WORKDIR)
            status = await made.wait.aio()
        except Exception as error:
            raise InfrastructureError(f"modal: the sandbox did not start: {error!r}") from error
        if status:
            raise InfrastructureError(f"modal: {WORKDIR} could not be made, status {status}")

    async def _destroy(self) -> None:
        if self._box is not None:
            try:
                await self._box.terminate.aio()
            except Exception as error:
                raise InfrastructureError(f"modal: the sandbox could not be ended: {error!r}") from error

    async def _attach(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdin: bool, timeout_s: float | None
    ) -> Attachment:
        # A single program cannot be killed from outside: the provider enforces its deadline, rounded up to seconds.
        timeout = None if timeout_s is None else math.ceil(timeout_s)
        try:
            process = await self._box.exec.aio(*in_shell(argv, env, cwd), text=False, timeout=timeout)
            if not stdin:
                process.stdin.write_eof()
                await process.stdin.drain.aio()
        except Exception as error:
            raise InfrastructureError(f"modal: the program did not start: {error!r}") from error
        return ModalAttachment(process)
