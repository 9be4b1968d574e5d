"""What every backend does alike: language profiles, default bounds, the checks of a spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from asyncrl.env.sandbox import languages
from asyncrl.env.sandbox.protocol import WORKDIR, ExecResult, Limits, Sandbox, SandboxSpec
from asyncrl.errors import ConfigError, ConflictError, InputError

COMPILE_TIMEOUT_S = 60.0
NOT_FOUND, CANNOT_RUN = 127, 126
"""Exit statuses as shells give them: no such program; one that the session's own state keeps from starting."""
PATH = "/usr/local/bin:/usr/bin:/bin"


class BaseSandbox(Sandbox):
    """Implements `exec` and `build` over `_run`; a backend gives `_run`, files, processes, start and stop."""

    takes_mounts: ClassVar[bool] = True
    takes_allow_hosts: ClassVar[bool] = False

    def __init__(self) -> None:
        self.workdir = WORKDIR
        """Where programs inside find the session's folder; differs where nothing can be mounted."""
        self.spec = SandboxSpec()
        self.limits = Limits()
        self.started = False

    def _accept(self, spec: SandboxSpec) -> None:
        """Keep the spec, or raise `ConfigError` naming what this backend cannot do."""
        if self.started:
            raise ConflictError("a sandbox is started once")
        if spec.mounts and not self.takes_mounts:
            raise ConfigError(f"sandbox backend {self.name!r} takes no mounts, got {spec.mounts!r}")
        if spec.allow_hosts and not self.takes_allow_hosts:
            raise ConfigError(
                f"sandbox backend {self.name!r} has no network allow-list, got allow_hosts={spec.allow_hosts!r}; "
                "backends with one: bubblewrap, zygote"
            )
        for name, value in spec.env.items():
            if "=" in name or "\0" in name + value:
                raise ConfigError(f"sandbox environment variable {name!r} must not contain '=' or NUL")
        self.spec = spec
        self.limits = spec.limits or languages.get(spec.language).limits
        self.started = True

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
        return await self._run(self._checked(argv or ()), stdin, timeout_s, bound, env, cwd)

    async def build(self, code: str, language: str | None = None) -> tuple[ExecResult, tuple[str, ...]]:
        profile = languages.get(language or self.spec.language)
        try:
            await self.write(profile.file, code.encode("utf-8", "surrogatepass"))
        except InputError as error:
            # A full disk, say, or a folder of that name: what programs of the session left there.
            return ExecResult(CANNOT_RUN, stderr=str(error).encode(), phase="compile"), profile.run
        if not profile.compile:
            return ExecResult(0, phase="compile"), profile.run
        result = await self._run(
            profile.compile, b"", COMPILE_TIMEOUT_S, self.limits.output_bytes, None, WORKDIR
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
