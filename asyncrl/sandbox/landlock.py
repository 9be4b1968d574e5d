"""Landlock, a system-call filter and rlimits: for hosts and containers that allow no namespaces.

The program sees the host's paths but may open only system programs and libraries and its own folder; it makes no
sockets at all. `workdir` is the folder's real path, so programs should use relative paths.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
import struct
import sys
from collections.abc import Mapping
from typing import ClassVar

from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.sandbox.base import PATH
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.local import Command, LocalSandbox, rlimits
from asyncrl.sandbox.protocol import Guarantee, Mount, Probe, SandboxSpec

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
ALL_V1 = (1 << 13) - 1
READ = EXECUTE | READ_FILE | READ_DIR
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
NET_BIND_CONNECT, SCOPE_SOCKET_SIGNAL = 3, 3

READABLE = (
    "/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs",
    "/etc/localtime", "/etc/java-*-openjdk", "/proc/self", "/proc/meminfo", "/proc/cpuinfo", "/proc/stat",
    "/sys/devices/system/cpu",
)  # fmt: skip
"""/proc/self is the program's own folder only: the rule refers to the process that will become the program."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@functools.cache
def ruleset(abi: int) -> tuple[str, int]:
    """Return the packed ruleset attribute (hex) and the file rights it handles, for a kernel's Landlock version."""
    rights = (
        ALL_V1 | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0) | (IOCTL_DEV if abi >= 5 else 0)
    )
    parts = [rights] + ([NET_BIND_CONNECT] if abi >= 4 else []) + ([SCOPE_SOCKET_SIGNAL] if abi >= 6 else [])
    return struct.pack(f"={len(parts)}Q", *parts).hex(), rights


class LandlockSandbox(LocalSandbox):
    name: ClassVar[str] = "landlock"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {Guarantee.HOST_KERNEL}

    @classmethod
    async def probe(cls) -> Probe:
        try:
            launcher = await LauncherClient.shared()
        except (AsyncRLError, OSError) as error:
            return Probe(cls.name, False, str(error))
        if not launcher.landlock:
            return Probe(
                cls.name, False, "the kernel has no Landlock, or this container forbids it; needs Linux 5.13"
            )
        missing: tuple[Guarantee, ...] = ()
        if not launcher.uids:
            # RLIMIT_NPROC counts all processes of the user, so it cannot be set.
            missing += (Guarantee.PROCESS_LIMIT,)
            if launcher.landlock < 6:
                missing += (Guarantee.HOST_PROCESSES,)
        return await cls._probe(missing)

    async def start(self, spec: SandboxSpec) -> None:
        for mount in spec.mounts:
            if mount.source != mount.target:
                raise ConfigError(
                    f"landlock cannot show {mount.source!r} as {mount.target!r}: without namespaces source and target "
                    "of a mount must be the same path"
                )
        await super().start(spec)
        self.workdir = f"{self._path}/work"

    def _bring_python(self) -> None:
        prefix = sys.base_prefix
        env = {"PATH": f"{PATH}:{prefix}/bin"} | dict(self.spec.env)
        self.spec = dataclasses.replace(self.spec, mounts=(*self.spec.mounts, Mount(prefix, prefix)), env=env)

    def _environment(self, extra: Mapping[str, str] | None) -> dict[str, str]:
        return super()._environment(extra) | {"TMPDIR": f"{self._path}/tmp"}

    def _judge_paths(self) -> tuple[str, str]:
        return f"{self._path}/tests", f"{self._path}/logs"

    def _temporary_paths(self) -> tuple[str, ...]:
        return (f"{self._path}/tmp", f"{self._path}/shm")

    def _rules(self, rights: int, judging: bool) -> list[tuple[int, str]]:
        rules = [(READ, path) for pattern in READABLE for path in glob.glob(pattern)]
        rules += [(READ_FILE | WRITE_FILE, path) for path in DEVICES if os.path.exists(path)]
        rules += [(rights if mount.writable else READ, mount.source) for mount in self.spec.mounts]
        rules = [(access if os.path.isdir(path) else access & FILE_ONLY, path) for access, path in rules]
        # Not checked here: they may exist in the launcher's mount namespace only.
        writable = ("work", "tmp", "shm", "logs") if judging else ("work", "tmp", "shm")
        rules += [(rights & ~IOCTL_DEV, f"{self._path}/{name}") for name in writable]
        if judging:
            rules.append((READ, f"{self._path}/tests"))
        return [(access & rights, path) for access, path in rules]

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        assert self._launcher is not None
        handled, rights = ruleset(self._launcher.landlock)
        bounds = rlimits(self.limits)
        if not self._launcher.uids:
            del bounds["NPROC"]
        command = Command(argv, env, cwd, supervise=True, filter="sealed", rlimits=bounds)
        return dataclasses.replace(command, landlock=(handled, self._rules(rights, judging)))
