"""What all backends share: language profiles, default limits, and the checks of a spec."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar

from asyncrl.agent_time import granted, own
from asyncrl.errors import ConfigError, ConflictError, InputError
from asyncrl.sandbox import languages
from asyncrl.sandbox.protocol import WORKDIR, ExecResult, Limits, Sandbox, SandboxSpec

COMPILE_TIMEOUT_S = 60.0
NOT_FOUND, CANNOT_RUN = 127, 126
KILLED = 137
"""Exit statuses as in shells: no such program; a program that cannot start because of the session's own state."""
PATH = "/usr/local/bin:/usr/bin:/bin"


async def in_time(timeout_s: float, run: Callable[[float], Awaitable[ExecResult]]) -> ExecResult:
    """Run a program within what the environment's step grants (`agent_time`); one that gets no time has timed out.

    run: with the seconds that it may take.
    """
    async with granted(timeout_s) as grant:
        if not grant.enough:
            return ExecResult(KILLED, timed_out=True)
        result = await run(grant.limit_s)
        # What it waited for before it ran is not its own.
        grant.used_s = result.wall_s
        return result


class Judge:
    """Holds and runs the tests that judge a session's files, and reads what they write.

    This one hides them in the session's folder under an unpredictable name. Backends that can keep them out of reach
    (`local_judge`).
    """

    def __init__(self, box: Sandbox) -> None:
        home = f"{WORKDIR}/.verifier-{secrets.token_hex(8)}"
        self.box, self.tests, self.logs = box, f"{home}/tests", f"{home}/logs"
        """Paths inside, of the folders for the tests' files and for their results."""
        self.sealed = False
        """Whether nothing but the tests themselves can write to `logs`."""

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Put files below `tests`. Raises `InputError` if the session's disk is full."""
        with own():
            made = await self.box.exec(["mkdir", "-p", self.logs])
        for path, data in files.items():
            await self.box.write(f"{self.tests}/{path}", data)
        if not made.ok:
            raise InputError(f"sandbox folder {self.logs} cannot be made: {made.stderr[-500:]!r}")

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes = b"",
        timeout_s: float,
        max_output_bytes: int,
    ) -> ExecResult:
        """Run a program that may write to `logs`."""
        return await self.box.exec(
            argv, stdin=stdin, timeout_s=timeout_s, max_output_bytes=max_output_bytes, env=env
        )

    async def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return a file below `logs`, or None without one. Raises `InputError` as `Sandbox.read` does."""
        path = f"{self.logs}/{name}"
        with own():
            there = await self.box.exec(["sh", "-c", '[ -e "$0" ] || [ -L "$0" ]', path])
        return await self.box.read(path, max_bytes) if there.ok else None

    async def clear(self) -> None:
        """Take the tests and their results out of the session. Raises `InputError` where what is judged prevents it."""
        with own():
            done = await self.box.exec(["rm", "-rf", self.tests.removesuffix("/tests")])
        if not done.ok:
            raise InputError(f"sandbox folder {self.tests} cannot be removed: {done.stderr[-500:]!r}")


class BaseSandbox(Sandbox):
    """Implements `exec` and `build` over `_run`; a backend gives `_run`, files, processes, start and stop."""

    takes_mounts: ClassVar[bool] = True
    takes_allow_hosts: ClassVar[bool] = False
    takes_root: ClassVar[bool] = False

    def __init__(self) -> None:
        self.workdir = WORKDIR
        """Path of the session's folder inside; differs where nothing can be mounted."""
        self.spec = SandboxSpec()
        self.limits = Limits()
        self.started = False

    def _accept(self, spec: SandboxSpec) -> None:
        """Store the spec, or raise `ConfigError` naming what this backend cannot do."""
        if self.started:
            raise ConflictError("a sandbox is started once")
        if spec.mounts and not self.takes_mounts:
            raise ConfigError(f"sandbox backend {self.name!r} takes no mounts, got {spec.mounts!r}")
        for field in ("allow_hosts", "judge_hosts"):
            if (hosts := getattr(spec, field)) and not self.takes_allow_hosts:
                raise ConfigError(
                    f"sandbox backend {self.name!r} has no network allow-list, got {field}={hosts!r}; backends with "
                    "one: bubblewrap, zygote"
                )
        if spec.root and not self.takes_root:
            raise ConfigError(
                f"sandbox backend {self.name!r} takes no root file system; backends that do: bubblewrap"
            )
        for name, value in spec.env.items():
            if "=" in name or "\0" in name + value:
                raise ConfigError(f"sandbox environment variable {name!r} must not contain '=' or NUL")
        self.spec = spec
        self.limits = spec.limits or languages.get(spec.language).limits
        self.started = True

    def judge(self) -> Judge:
        """Return where to run the session's tests, once the judged programs have ended."""
        return Judge(self)

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        base = {"PATH": PATH, "HOME": self.workdir, "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
        return base | dict(self.spec.env) | dict(extra or {})

    async def _run(
        self,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int,
        env: Mapping[str, str] | None,
        cwd: str,
    ) -> ExecResult:
        raise NotImplementedError

    async def exec(
        self,
        argv: Sequence[str] | None = None,
        *,
        code: str | None = None,
        language: str | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = WORKDIR,
    ) -> ExecResult:
        if (argv is None) == (code is None):
            raise InputError("sandbox exec takes exactly one of argv and code")
        if not self.started:
            raise ConflictError("the sandbox has not been started")
        if code is not None:
            built, argv = await self.build(code, language)
            if not built.ok:
                return built
        timeout_s = self.limits.wall_s if timeout_s is None else timeout_s
        bound = self.limits.output_bytes if max_output_bytes is None else max_output_bytes
        command = self._checked(argv or ())
        return await in_time(timeout_s, lambda limit_s: self._run(command, stdin, limit_s, bound, env, cwd))

    async def build(self, code: str, language: str | None = None) -> tuple[ExecResult, tuple[str, ...]]:
        profile = languages.get(language or self.spec.language)
        try:
            await self.write(profile.file, code.encode("utf-8", "surrogatepass"))
        except InputError as error:
            # Caused by the session's programs, such as a full disk or a folder of that name.
            return ExecResult(CANNOT_RUN, stderr=str(error).encode(), phase="compile"), profile.run
        if not profile.compile:
            return ExecResult(0, phase="compile"), profile.run
        bound, command = self.limits.output_bytes, profile.compile
        result = await in_time(
            COMPILE_TIMEOUT_S, lambda limit_s: self._run(command, b"", limit_s, bound, None, WORKDIR)
        )
        if result.returncode == NOT_FOUND:
            packages = " ".join(profile.packages)
            raise ConfigError(f"language {profile.name!r} needs {profile.compile[0]!r}; install: {packages}")
        return dataclasses.replace(result, phase="compile"), profile.run

    @staticmethod
    def _checked(argv: Sequence[str]) -> list[str]:
        if isinstance(argv, str) or not argv or any("\0" in part for part in argv):
            raise InputError(f"sandbox argv must be a non-empty list of strings without NUL, got {argv!r}")
        return list(argv)
