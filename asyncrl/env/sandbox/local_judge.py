"""The tests of a local session, out of reach of the session's programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asyncrl.env.sandbox.base import Judge
from asyncrl.env.sandbox.jail import files
from asyncrl.env.sandbox.protocol import ExecResult

if TYPE_CHECKING:
    from asyncrl.env.sandbox.local import LocalSandbox

TESTS, LOGS = "/tests", "/logs/verifier"
"""Where programs see them if anything can be mounted; other programs of the session do not see them at all."""


class LocalJudge(Judge):
    """Keeps tests in a folder of asyncrl's own user, shown read-only, and only to what `exec` runs."""

    def __init__(self, box: LocalSandbox, tests: str, logs: str, tests_fd: int, logs_fd: int) -> None:
        self._local, self.tests, self.logs = box, tests, logs
        self._tests_fd, self._logs_fd = tests_fd, logs_fd

    async def write(self, files_: Mapping[str, bytes]) -> None:
        def write() -> None:
            for path, data in files_.items():
                files.write_file(self._tests_fd, path, data, None, mode=0o755)

        await asyncio.to_thread(write)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes = b"",
        timeout_s: float,
        max_output_bytes: int,
    ) -> ExecResult:
        return await self._local.run_judge(argv, stdin, timeout_s, max_output_bytes, env)

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        try:
            return await asyncio.to_thread(files.read_file, self._logs_fd, name, max_bytes)
        except files.NoSuchFile:
            return None
