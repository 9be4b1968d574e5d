"""A shell that keeps its folder and variables between commands."""

from __future__ import annotations

import asyncio
import base64
import secrets

from asyncrl.agent_time import granted
from asyncrl.errors import ConflictError, DeadlineError
from asyncrl.sandbox.protocol import ReadEnd, Sandbox, SandboxProcess

STOP_TIMEOUT_S = 10.0


class Shell:
    """Runs commands one after the other in one bash. A shell that hangs, ends or floods is replaced by a new one."""

    def __init__(self, box: Sandbox, characters: int) -> None:
        self._box = box
        self._characters = characters
        self._bash: SandboxProcess | None = None
        self._turn = asyncio.Lock()

    async def run(self, command: str, timeout_s: float) -> str:
        """Return the command's output, and its exit status if that is not 0. It may get less time (`agent_time`)."""
        async with self._turn, granted(timeout_s) as grant:
            if not grant.enough:
                return "error: no time is left in this turn; the command was not run"
            return await self._run(command, grant.limit_s)

    async def _run(self, command: str, timeout_s: float) -> str:
        if self._bash is None:
            self._bash = await self._box.open_process(["bash", "--noprofile", "--norc"])
        mark = secrets.token_hex(8)
        # As one encoded word, so that an unclosed quote or bracket cannot swallow what follows.
        text = base64.b64encode(command.encode("utf-8", "surrogatepass")).decode()
        line = f"eval \"$(base64 -d <<<'{text}')\" </dev/null; printf '%s %s %s\\n' {mark} $? {mark}\n"
        try:
            await self._bash.send(line.encode())
        except (ConflictError, DeadlineError):
            # A process left behind by an earlier command has killed or stopped it.
            await self.stop()
            return "the shell has ended and was started again; the command was not run"
        end = f" {mark}\n".encode()
        result = await self._bash.read_until(end, timeout_s)
        if result.end is ReadEnd.MARKER:
            output, _, status = result.data[: -len(end)].decode("utf-8", "replace").rpartition(f"{mark} ")
            shown = self._cut(output.rstrip("\n"))
            return shown or "(no output)" if status == "0" else f"{shown}\n(exit status {status})".strip()
        await self.stop()
        why = {
            ReadEnd.TIMEOUT: f"error: the command took longer than {timeout_s:.3g} s; the shell was started again",
            ReadEnd.LIMIT: "error: the command wrote too much; the shell was started again",
            ReadEnd.CLOSED: "the shell has ended and was started again",
        }[result.end]
        return f"{self._cut(result.data.decode('utf-8', 'replace').rstrip())}\n{why}".strip()

    async def stop(self) -> None:
        """Kill the shell and everything that was started from it."""
        if self._bash is not None:
            await self._bash.kill()
            await self._bash.wait(STOP_TIMEOUT_S)
            self._bash = None

    def _cut(self, text: str) -> str:
        if len(text) <= self._characters:
            return text
        half = self._characters // 2
        return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
