"""Where an attack happens, and how its outcome is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from asyncrl.extensions.sandbox_attacks.host import Host
from asyncrl.sandbox.backends import backend_class
from asyncrl.sandbox.protocol import MIB, ExecResult, Limits, Sandbox, SandboxSpec

LIMITS = Limits(
    wall_s=15, cpu_s=10, memory_bytes=192 * MIB, processes=24, disk_bytes=32 * MIB, file_bytes=16 * MIB,
    address_space_bytes=1024 * MIB, output_bytes=64 * 1024,
)  # fmt: skip


class Inconclusive(Exception):
    """The attack did not take place."""


@dataclass
class Scene:
    """Where an attack happens."""

    backend: str
    host: Host
    runs: int = 1000

    async def open(self, **limits: float) -> Sandbox:
        box = backend_class(self.backend)()
        try:
            await box.start(SandboxSpec(limits=replace(LIMITS, **limits)))  # type: ignore[arg-type]
        except BaseException:
            await box.stop()
            raise
        return box

    def fill(self, program: str, **values: object) -> str:
        for name, value in {"TOKEN": self.host.token, **values}.items():
            program = program.replace(f"@{name}@", str(value))
        return program

    async def run(self, program: str, *, timeout_s: float | None = None, **values: object) -> ExecResult:
        """Run an attack's program in its own session."""
        async with await self.open() as box:
            return await box.exec(code=self.fill(program, **values), timeout_s=timeout_s)


def leaks_in(result: ExecResult, *, must_end: bool = True) -> list[str]:
    """Return what the program says it got. Raises `Inconclusive` if it cannot have tried."""
    lines = result.text.splitlines()
    leaks = [line.removeprefix("LEAK ") for line in lines if line.startswith("LEAK")]
    if must_end and not leaks and "DONE" not in lines:
        raise Inconclusive(f"the attack did not run to its end: {result}"[:600])
    return leaks
