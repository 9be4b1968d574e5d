"""Keeps the tests of a local session out of reach of the session's programs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from asyncrl.agent_time import own
from asyncrl.errors import InputError
from asyncrl.sandbox.base import Judge, in_time
from asyncrl.sandbox.jail.files import NoSuchFile, read_file, write_file
from asyncrl.sandbox.jail.folders import remove_all
from asyncrl.sandbox.protocol import ExecResult

TESTS, LOGS = "/tests", "/logs/verifier"
"""Paths inside if anything can be mounted; other programs of the session do not see them at all."""

EMPTY = 'cd "$0" && chmod -R u+rwX . && rm -rf -- ..?* .[!.]* * && [ -z "$(ls -A)" ]'
CLEAR_S = 30.0


class JudgedSession(Protocol):
    """What a judge needs of its session."""

    async def judge_folder(self, name: str) -> int:
        """Return a descriptor of the judge's folder `tests` or `logs`, which the judge closes."""
        ...

    async def run_judge(
        self,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int,
        env: Mapping[str, str],
    ) -> ExecResult:
        """Run a program of the judge."""
        ...


class LocalJudge(Judge):
    """Keeps tests in a folder of asyncrl's own user, mounted read-only, and only for programs that `exec` runs."""

    def __init__(self, session: JudgedSession, tests: str, logs: str, sealed: bool) -> None:
        self._session, self.tests, self.logs, self.sealed = session, tests, logs, sealed

    async def write(self, files: Mapping[str, bytes]) -> None:
        folder = await self._session.judge_folder("tests")

        def write() -> None:
            for path, data in files.items():
                write_file(folder, path, data, None, mode=0o755)

        try:
            await asyncio.to_thread(write)
        finally:
            os.close(folder)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes = b"",
        timeout_s: float,
        max_output_bytes: int,
    ) -> ExecResult:
        return await in_time(
            timeout_s,
            lambda limit_s: self._session.run_judge(argv, stdin, limit_s, max_output_bytes, env),
        )

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        folder = await self._session.judge_folder("logs")
        try:
            return await asyncio.to_thread(read_file, folder, name, max_bytes)
        except NoSuchFile:
            return None
        finally:
            os.close(folder)

    async def clear(self) -> None:
        # The results belong to the session's user, the tests to asyncrl's.
        with own():
            done = await self._session.run_judge(["sh", "-c", EMPTY, self.logs], b"", CLEAR_S, 4096, {})
        if not done.ok:
            raise InputError(f"sandbox folder {self.logs} cannot be emptied: {done.stderr[-500:]!r}")
        folder = await self._session.judge_folder("tests")
        try:
            await asyncio.to_thread(remove_all, folder)
        finally:
            os.close(folder)
