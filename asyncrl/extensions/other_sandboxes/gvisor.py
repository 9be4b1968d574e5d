"""gVisor: programs run on a kernel in user space, so that their system calls do not reach the host's.

Every program is one OCI bundle run by `runsc`, without a daemon. Needs root and the `runsc` executable.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from typing import Any, ClassVar

from asyncrl.errors import InfrastructureError
from asyncrl.sandbox.base import NOT_FOUND
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.local import Command, LocalSandbox, rlimits
from asyncrl.sandbox.local_judge import LOGS, TESTS
from asyncrl.sandbox.protocol import WORKDIR, Guarantee, Probe

INSTALL_HINT = "install it from gVisor's releases or the system package 'runsc'"
LOG_FD = 3
BIND = ["bind", "nosuid", "nodev"]
NAMESPACES = ("pid", "network", "ipc", "uts", "mount")


class GvisorSandbox(LocalSandbox):
    name: ClassVar[str] = "gvisor"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee)

    def __init__(self) -> None:
        super().__init__()
        self._bundles = itertools.count(1)

    @classmethod
    async def probe(cls) -> Probe:
        if shutil.which("runsc") is None:
            return Probe(cls.name, False, f"runsc is not installed; {INSTALL_HINT}")
        if os.geteuid() != 0:
            return Probe(cls.name, False, "runsc needs root")
        return await cls._probe()

    def _lacking(self, launcher: LauncherClient) -> str:
        return "" if launcher.mounts and launcher.uids else "root, mounts and user ids"

    def _mounts(self, judging: bool) -> list[dict[str, Any]]:
        assert self._launcher is not None
        binds = [("/usr", "/usr", False), (f"{self._launcher.base}/etc", "/etc", False)]
        for name in ("lib", "lib64", "lib32", "bin", "sbin"):
            if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
                binds.append((f"/{name}", f"/{name}", False))
        for name, target in (("work", WORKDIR), ("tmp", "/tmp"), ("shm", "/dev/shm")):
            binds.append((f"{self._path}/{name}", target, True))
        if judging:
            binds += [(f"{self._path}/tests", TESTS, False), (f"{self._path}/logs", LOGS, True)]
        for mount, source in zip(self.spec.mounts, self._exposed, strict=True):
            binds.append((source, mount.target, mount.writable))
        mounts: list[dict[str, Any]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=0755"]},
        ]
        for source, target, writable in binds:
            options = [*BIND, "rw" if writable else "ro"]
            mounts.append({"destination": target, "type": "bind", "source": source, "options": options})
        return mounts

    def _bundle(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool) -> dict[str, Any]:
        """The OCI configuration of one program."""
        assert self._launcher is not None
        bounds = rlimits(self.limits) | {"NPROC": self.limits.processes}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": self._uid, "gid": self._uid},
                # Through env, whose 127 distinguishes a missing program from a failing runtime.
                "args": ["/usr/bin/env", *argv],
                "env": [f"{name}={value}" for name, value in env.items()],
                "cwd": cwd,
                "capabilities": {},
                "rlimits": [{"type": f"RLIMIT_{k}", "hard": v, "soft": v} for k, v in bounds.items()],
                "noNewPrivileges": True,
            },
            "root": {"path": f"{self._launcher.base}/root", "readonly": True},
            "hostname": "sandbox",
            "mounts": self._mounts(judging),
            "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
        }

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        number = next(self._bundles)
        runsc = [
            shutil.which("runsc") or "runsc", "--root", f"{self._path}/runsc", "--network=none", "--ignore-cgroups",
            "--overlay2=none", "--host-uds=none", "--log-fd", str(LOG_FD), "run", "--bundle",
            f"{self._path}/bundle{number}", f"asyncrl-{os.getpid()}-{self._session}-{number}",
        ]  # fmt: skip
        return Command(
            runsc,
            {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            supervise=True,
            keep_user=True,
            memory_files=True,
            files={f"bundle{number}/config.json": json.dumps(self._bundle(argv, env, cwd, judging))},
            status_fd=True,
        )

    def _check_status(self, status: bytes, returncode: int, stderr: bytes) -> int:
        log = status.decode(errors="replace").strip()
        if returncode == 128 and log:
            raise InfrastructureError(f"runsc failed: {log[-2000:]}")
        return NOT_FOUND if returncode == 127 else returncode
