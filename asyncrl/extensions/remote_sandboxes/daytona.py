"""A sandbox per session at Daytona. Needs `pip install daytona` and DAYTONA_API_KEY."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Sequence
from typing import Any, ClassVar

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.remote_sandboxes.container import Attachment, ContainerSandbox, Take, in_shell
from asyncrl.extensions.remote_sandboxes.e2b import NOT_OURS
from asyncrl.extensions.remote_sandboxes.sdk import load
from asyncrl.sandbox.protocol import WORKDIR, Guarantee

LIFETIME_MINUTES = 60
"""The provider deletes an idle sandbox by itself after this long."""


class DaytonaAttachment(Attachment):
    """One command in its own shell session, which ends with it."""

    def __init__(self, process: Any, session: str, command: str) -> None:
        self._process, self._session, self._command = process, session, command

    async def send(self, data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        await self._process.send_session_command_input(self._session, self._command, text)

    async def pump(self, take: Take) -> int:
        try:
            await self._process.get_session_command_logs_async(
                self._session,
                self._command,
                lambda text: take(False, text.encode("utf-8", "surrogateescape")),
                lambda text: take(True, text.encode("utf-8", "surrogateescape")),
            )
            for _ in range(100):
                state = await self._process.get_session_command(self._session, self._command)
                if state.exit_code is not None:
                    return int(state.exit_code)
                await asyncio.sleep(0.05)
        except Exception as error:
            raise InfrastructureError(f"daytona: {error!r}") from error
        raise InfrastructureError("daytona: the program's output ended but the program did not")

    async def kill(self) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, ""
        if session:
            try:
                await self._process.delete_session(session)
            except Exception as error:
                raise InfrastructureError(f"daytona: a session could not be ended: {error!r}") from error


class DaytonaSandbox(ContainerSandbox):
    name: ClassVar[str] = "daytona"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {*NOT_OURS, Guarantee.HOST_KERNEL}
    takes_mounts: ClassVar[bool] = False
    half_close: ClassVar[bool] = False
    sweeps: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._client: Any = None
        self._box: Any = None

    async def _create(self) -> None:
        library = load("daytona", self.name)
        self._library = library
        common = {
            "network_block_all": True,
            "auto_stop_interval": LIFETIME_MINUTES,
            "auto_delete_interval": 0,
        }
        try:
            self._client = library.AsyncDaytona()
            if self.spec.image:
                parameters = library.CreateSandboxFromImageParams(image=self.spec.image, **common)
            else:
                parameters = library.CreateSandboxFromSnapshotParams(**common)
            self._box = await self._client.create(parameters)
            made = await self._box.process.exec(f"mkdir -p {WORKDIR} || sudo install -d -m 1777 {WORKDIR}")
        except Exception as error:
            raise InfrastructureError(f"daytona: the sandbox did not start: {error!r}") from error
        if made.exit_code:
            raise InfrastructureError(f"daytona: {WORKDIR} could not be made: {made}")

    async def _destroy(self) -> None:
        if self._client is None:
            return
        try:
            if self._box is not None:
                await self._client.delete(self._box)
        except Exception as error:
            raise InfrastructureError(f"daytona: the sandbox could not be deleted: {error!r}") from error
        finally:
            await self._client.close()

    async def _attach(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdin: bool, timeout_s: float | None
    ) -> Attachment:
        process, session = self._box.process, f"asyncrl-{secrets.token_hex(8)}"
        # In a subshell, since the command must not end the session's shell, which reports its status.
        command = f"({shlex.join(in_shell(argv, env, cwd))})" + ("" if stdin else " </dev/null")
        try:
            await process.create_session(session)
            request = self._library.SessionExecuteRequest(
                command=command, run_async=True, suppress_input_echo=True
            )
            started = await process.execute_session_command(session, request)
        except Exception as error:
            raise InfrastructureError(f"daytona: the program did not start: {error!r}") from error
        return DaytonaAttachment(process, session, started.cmd_id)
