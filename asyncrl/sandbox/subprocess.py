"""No sandbox: the program runs as asyncrl's own user, with a deadline and no other protection.

For code you wrote yourself. `asyncrl sandbox check --backend subprocess` shows what gets through.
"""

from __future__ import annotations

from typing import ClassVar

from asyncrl.sandbox.local import Command, LocalSandbox
from asyncrl.sandbox.protocol import Guarantee, Probe, SandboxSpec


class SubprocessSandbox(LocalSandbox):
    name: ClassVar[str] = "subprocess"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.TIME_LIMIT, Guarantee.OUTPUT_LIMIT})
    needs_own_uid: ClassVar[bool] = False
    takes_mounts: ClassVar[bool] = False

    @classmethod
    async def probe(cls) -> Probe:
        return await cls._probe()

    async def start(self, spec: SandboxSpec) -> None:
        await super().start(spec)
        self.workdir = f"{self._path}/work"

    def _bring_python(self) -> None:
        """Programs see everything on the host."""

    def _judge_paths(self) -> tuple[str, str]:
        return f"{self._path}/tests", f"{self._path}/logs"

    def _temporary_paths(self) -> tuple[str, ...]:
        return (f"{self._path}/tmp", f"{self._path}/shm")

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        return Command(argv, env, cwd, rlimits={"CORE": 0})
