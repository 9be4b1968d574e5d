"""A microVM per session at E2B. Needs `pip install e2b` and E2B_API_KEY."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from typing import Any, ClassVar

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.remote_sandboxes.container import Attachment, ContainerSandbox, Take, in_shell
from asyncrl.extensions.remote_sandboxes.sdk import load
from asyncrl.sandbox.protocol import WORKDIR, Guarantee

LIFETIME_S = 3600
"""The provider ends the machine by itself after this long."""
NOT_OURS = (
    Guarantee.PROCESS_LIMIT,
    Guarantee.MEMORY_LIMIT,
    Guarantee.DISK_LIMIT,
    Guarantee.KERNEL_SURFACE,
    Guarantee.NO_LEFTOVERS,
    Guarantee.FRESH_UID,
)
"""Guarantees that a dedicated machine gives by its size, or does not need; leftovers last until it is deleted."""


class E2BAttachment(Attachment):
    def __init__(self) -> None:
        self.handle: Any = None
        self.pieces: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()

    async def send(self, data: bytes) -> None:
        await self.handle.send_stdin(data)

    async def send_end(self) -> None:
        await self.handle.close_stdin()

    async def pump(self, take: Take) -> int:
        waiting = asyncio.ensure_future(self.handle.wait())
        try:
            while not (waiting.done() and self.pieces.empty()):
                getting = asyncio.ensure_future(self.pieces.get())
                await asyncio.wait((waiting, getting), return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    is_stderr, text = getting.result()
                    take(is_stderr, text.encode("utf-8", "surrogateescape"))
                else:
                    getting.cancel()
            return int(waiting.result().exit_code)
        except Exception as error:
            # A non-zero exit is an exception that carries the status.
            if hasattr(error, "exit_code"):
                return int(error.exit_code)
            raise InfrastructureError(f"e2b: {error!r}") from error
        finally:
            waiting.cancel()

    async def kill(self) -> None:
        await self.handle.kill()


class E2BSandbox(ContainerSandbox):
    name: ClassVar[str] = "e2b"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - set(NOT_OURS)
    takes_mounts: ClassVar[bool] = False
    sweeps: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._machine: Any = None

    async def _create(self) -> None:
        library = load("e2b", self.name)
        try:
            self._machine = await library.AsyncSandbox.create(
                template=self.spec.image or None, timeout=LIFETIME_S, allow_internet_access=False
            )
            made = await self._machine.commands.run(
                f"mkdir -p {WORKDIR} && chown $(id -u user) {WORKDIR}", user="root", cwd="/"
            )
        except Exception as error:
            raise InfrastructureError(f"e2b: the machine did not start: {error!r}") from error
        if made.exit_code:
            raise InfrastructureError(f"e2b: {WORKDIR} could not be made: {made}")

    async def _destroy(self) -> None:
        if self._machine is not None:
            try:
                await self._machine.kill()
            except Exception as error:
                raise InfrastructureError(f"e2b: the machine could not be ended: {error!r}") from error

    async def _attach(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdin: bool, timeout_s: float | None
    ) -> Attachment:
        attachment = E2BAttachment()
        try:
            attachment.handle = await self._machine.commands.run(
                shlex.join(in_shell(argv, env, cwd)),
                background=True,
                stdin=stdin,
                cwd="/",
                timeout=0,
                on_stdout=lambda text: attachment.pieces.put_nowait((False, text)),
                on_stderr=lambda text: attachment.pieces.put_nowait((True, text)),
            )
        except Exception as error:
            raise InfrastructureError(f"e2b: the program did not start: {error!r}") from error
        return attachment
