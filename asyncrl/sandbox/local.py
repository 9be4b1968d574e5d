"""Sandboxes made of processes on this machine: one launcher, one session folder, one command line per program."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from asyncrl.errors import AsyncRLError, ConfigError, ConflictError, InfrastructureError, UnavailableError
from asyncrl.sandbox.allow_list import AllowListProxy
from asyncrl.sandbox.base import CANNOT_RUN, NOT_FOUND, PATH, BaseSandbox, Judge
from asyncrl.sandbox.jail import files, spawn
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.jail.streams import BoundedReader, write_all
from asyncrl.sandbox.local_judge import LOGS, TESTS, LocalJudge
from asyncrl.sandbox.local_process import LocalProcess
from asyncrl.sandbox.protocol import (
    MIB,
    WORKDIR,
    ExecResult,
    Guarantee,
    Limits,
    Mount,
    Probe,
    SandboxProcess,
    SandboxSpec,
)

GRACE_S = 10.0
"""How long after a program's deadline the launcher may take to report its death."""
PIPE_GRACE_S = 0.25
OWN_PROCESSES = 6
"""Processes of the jail itself under the session's user id (its monitor, its init), in addition to the program's."""


NAMESPACES = "user and mount namespaces"
"""What most backends need of the launcher."""
OWN_PYTHON = "/opt/python"
PROGRAMS, JUDGE = "programs", "judge"
"""Networks of a session: of its programs, and of its judge where that reaches other hosts."""


def has_system_python() -> bool:
    return shutil.which("python3", path=PATH) is not None


@dataclass
class Command:
    """A request to the launcher to run a program."""

    argv: list[str]
    env: dict[str, str]
    cwd: str = "/"
    judge: dict[str, Any] | None = None
    """Arguments of `jail.trace.Tracer`, for a program whose children include the agent's."""
    supervise: bool = False
    """Run below a subreaper that kills leftovers; for jails without a pid namespace."""
    filter: str = ""
    """"" for none (the jail installs it), or a variant of `seccomp.build_filter`."""
    landlock: tuple[str, list[tuple[int, str]]] | None = None
    rlimits: dict[str, int] = field(default_factory=dict)
    network: str = ""
    """Name of a network namespace of the session's to enter first, empty unless hosts are allowed in it; for jails that
    would otherwise make one each time."""
    hide_run: bool = False
    """See an empty folder in the place of `spawn.RUN`, which is gone with the program; for jails that make folders on
    the host and leave them there."""
    memory_files: bool = False
    """Count memory in unnamed files, too: a userspace kernel keeps its programs' memory there."""
    most_processes: int = 0
    """End it when more are alive below it; 0 for no such watch. For programs that start as root, whose processes the
    kernel does not limit."""
    keep_user: bool = False
    """Start as asyncrl's own user; for a runtime that drops it itself."""
    files: dict[str, str] = field(default_factory=dict)
    """Written below the session's private folder first: path -> text."""
    status_fd: bool = False
    """Give the jail a pipe (descriptor 3) for its own reports."""


def rlimits(limits: Limits) -> dict[str, int]:
    """Return the limits per process in the launcher's form."""
    bounds = {
        "CPU": math.ceil(limits.cpu_s),
        "NPROC": limits.processes + OWN_PROCESSES,
        "FSIZE": limits.file_bytes,
        "NOFILE": limits.open_files,
        "CORE": 0,
    }
    return bounds | ({"AS": limits.address_space_bytes} if limits.address_space_bytes else {})


class LocalSandbox(BaseSandbox):
    """Implements everything over `_command`, which backends implement."""

    needs_own_uid: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self._launcher: LauncherClient | None = None
        self._session = 0
        self._uid: int | None = None
        self._path = ""
        """The session's folder as the launcher sees it."""
        self._exposed: list[str] = []
        """The mounts' sources, as the sandbox's user reaches them."""
        self._exposed_layers: dict[str, str] = {}
        """The folders of the root file system, likewise."""
        self._executable = ""
        self._folder = -1
        self._proxies: list[AllowListProxy] = []
        self._processes: set[LocalProcess] = set()
        self._stopping: asyncio.Future[None] | None = None

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        """Return how the program is run; with `judging` it sees the folders of the session's judge, too."""
        raise NotImplementedError

    def _check_status(self, status: bytes, returncode: int, stderr: bytes) -> int:
        """Return the program's exit status, from the jail's report; raises `InfrastructureError`."""
        return returncode

    def _broken_by_itself(self, complaint: str) -> bool:
        """Return whether a jail failed to start a program because of what the session's own programs did."""
        # Its processes are the only ones under its user id, if it has its own.
        crowded = self._uid is not None and os.strerror(errno.EAGAIN) in complaint
        return crowded or "chdir" in complaint

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec) -> None:
        self._accept(spec)
        if not has_system_python():
            self._bring_python()
        spec = self.spec
        tool = self._tool()
        for mount in spec.mounts:
            if not os.path.exists(mount.source):
                raise ConfigError(f"sandbox mount source {mount.source!r} does not exist")
        layers = [folder for _, folders in spec.root.layers for folder in folders] if spec.root else []
        for folder in layers:
            if not os.path.isdir(folder):
                raise ConfigError(f"sandbox root file system: {folder!r} does not exist")
        self._launcher = await LauncherClient.shared()
        self._session = next(self._launcher.sessions)
        request = {
            "op": "open",
            "session": self._session,
            "own_uid": self.needs_own_uid,
            "disk_bytes": self._folder_bytes(),
            "expose": [mount.source for mount in spec.mounts] + layers + ([tool[0]] if tool else []),
        }
        try:
            body, fds = await self._launcher.request(request)
        except InfrastructureError as error:
            if "UidsExhausted" in str(error):
                raise UnavailableError(str(error), retry_after_s=5.0) from error
            raise
        (self._folder,) = fds
        self._uid, self._path = body["uid"], body["path"]
        self._exposed = body["exposed"][: len(spec.mounts)]
        self._exposed_layers = dict(zip(layers, body["exposed"][len(spec.mounts) :], strict=False))
        if tool:
            self._executable = f"{body['exposed'][-1]}/{tool[1]}"
        for network, hosts in ((PROGRAMS, spec.allow_hosts), (JUDGE, spec.judge_hosts)):
            if hosts:
                await self._listen(network, hosts)
        await self._prepare()
        if lacking := self._lacking(self._launcher):
            raise ConfigError(f"{self.name} needs {lacking}, which this host or container forbids")

    def _lacking(self, launcher: LauncherClient) -> str:
        """Return what the backend needs of the launcher that this host does not let it have; "" for nothing."""
        return ""

    async def _listen(self, network: str, hosts: tuple[str, ...]) -> None:
        """Have programs in a network reach these hosts, and no other."""
        assert self._launcher is not None
        proxy = AllowListProxy(hosts)
        request = {"op": "listen", "session": self._session, "network": network, "ports": proxy.ports}
        _, sockets = await self._launcher.request(request)
        self._proxies.append(proxy)
        await proxy.start(sockets)

    def _network(self, judging: bool) -> tuple[str, tuple[str, ...]]:
        """Return the network of a program, and what it reaches there."""
        if judging and self.spec.judge_hosts is not None:
            return JUDGE, self.spec.judge_hosts
        return PROGRAMS, self.spec.allow_hosts

    def _tool(self) -> tuple[str, str] | None:
        """Return the folder of the jail's executable and its path in there; None for a jail that needs none."""
        return None

    def _bring_python(self) -> None:
        """Mount asyncrl's own interpreter inside, on a host without a system Python."""
        mount = Mount(sys.base_prefix, OWN_PYTHON)
        env = {"PATH": f"{PATH}:{OWN_PYTHON}/bin"} | dict(self.spec.env)
        self.spec = dataclasses.replace(self.spec, mounts=(*self.spec.mounts, mount), env=env)

    def _folder_bytes(self) -> int:
        """Space for the session's folder, /tmp and /dev/shm."""
        return self.limits.disk_bytes

    async def _prepare(self) -> None:
        """Called once the folder exists."""

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        # Continues if the caller is cancelled.
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        kills = [process.kill() for process in self._processes]
        # Programs that do not end now end with the session.
        await asyncio.gather(*kills, return_exceptions=True)
        if self._launcher is not None and self._session and not self._launcher.closed:
            await self._launcher.request({"op": "close", "session": self._session})
        for proxy in self._proxies:
            await proxy.stop()
        self.abandon()

    def abandon(self) -> None:
        """Close the session's descriptor: all that is to be done once event loop and launcher have ended."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    # -- programs ---------------------------------------------------------------------------------------------

    async def _spawn(
        self, command: Command, fds: tuple[int, ...], timeout_s: float | None
    ) -> tuple[int, asyncio.Future[tuple[dict[str, Any], list[int]]]]:
        if self._launcher is None or self._stopping is not None:
            raise ConflictError("the sandbox is not running")
        message = {
            "op": "spawn",
            "session": self._session,
            "argv": command.argv,
            "env": command.env,
            "cwd": command.cwd,
            "supervise": command.supervise,
            "judge": command.judge,
            "filter": command.filter,
            "network": command.network,
            "hide_run": command.hide_run,
            "keep_user": command.keep_user,
            "memory_files": command.memory_files,
            "most_processes": command.most_processes,
            "files": command.files,
            "landlock": command.landlock,
            "rlimits": command.rlimits,
            "reaches_hosts": bool(
                self.spec.judge_hosts if command.network == JUDGE else self.spec.allow_hosts
            ),
            "memory_bytes": self.limits.memory_bytes,
            "timeout_s": timeout_s,
        }
        return await self._launcher.submit(message, fds)

    async def _run(
        self,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int,
        env: Mapping[str, str] | None,
        cwd: str,
    ) -> ExecResult:
        command = self._command(list(argv), self._environment(env), self._inner_path(cwd))
        return await self._run_command(command, stdin, timeout_s, max_output_bytes)

    def judge(self) -> Judge:
        self._check_running()
        assert self._launcher is not None
        return LocalJudge(self, *self._judge_paths(), sealed=self._launcher.traces)

    async def judge_folder(self, name: str) -> int:
        """See `JudgedSession`."""
        self._check_running()
        assert self._launcher is not None
        request = {"op": "folder", "session": self._session, "name": name}
        _, (folder,) = await self._launcher.request(request)
        return folder

    def _judge_paths(self) -> tuple[str, str]:
        """The judge's folders as its programs see them."""
        return TESTS, LOGS

    def _temporary_paths(self) -> tuple[str, ...]:
        """Where programs may write besides the session's folder."""
        return ("/tmp", "/dev/shm")

    async def run_judge(
        self,
        argv: Sequence[str],
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int,
        env: Mapping[str, str],
    ) -> ExecResult:
        """See `JudgedSession`."""
        command = self._command(self._checked(argv), self._environment(env), self.workdir, judging=True)
        assert self._launcher is not None
        if self._launcher.traces and not command.keep_user:
            tests, logs = self._judge_paths()
            writable = [self.workdir, *self._temporary_paths()]
            command.judge = {"tests": tests, "logs": logs, "writable": writable}
        return await self._run_command(command, stdin, timeout_s, max_output_bytes)

    async def _run_command(
        self, command: Command, stdin: bytes, timeout_s: float, max_output_bytes: int
    ) -> ExecResult:
        started = time.monotonic()
        pipes = Pipes(with_stdin=bool(stdin), with_status=command.status_fd)
        try:
            job, ended = await self._spawn(command, pipes.theirs, timeout_s)
        except BaseException:
            pipes.close_all()
            raise
        pipes.close_theirs()
        launcher = self._launcher
        assert launcher is not None

        def flood() -> None:
            launcher.notify({"op": "kill", "job": job, "reason": "flood"})

        streams = [BoundedReader(fd, max_output_bytes, flood) for fd in pipes.outputs]
        status = BoundedReader(pipes.status, 4096, flood) if command.status_fd else None
        feeding = asyncio.create_task(_feed(pipes.stdin, stdin)) if stdin else None
        try:
            body, _ = await launcher.answer(ended, timeout_s + GRACE_S)
        except BaseException:
            launcher.notify({"op": "kill", "job": job})
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            outputs = [await stream.finish(PIPE_GRACE_S) for stream in streams]
            report = await status.finish(PIPE_GRACE_S) if status else b""
        return self._result(
            body, outputs, report, any(s.truncated for s in streams), time.monotonic() - started
        )

    def _result(
        self, body: dict[str, Any], outputs: list[bytes], report: bytes, truncated: bool, wall_s: float
    ) -> ExecResult:
        stdout, stderr = outputs
        reason, returncode = body["reason"], body["status"]
        for prefix, status in ((spawn.NOT_FOUND, NOT_FOUND), (spawn.CANNOT_RUN, CANNOT_RUN)):
            if body["error"].startswith(prefix):
                return ExecResult(status, stdout, body["error"].encode(), wall_s=wall_s)
        if body["error"]:
            raise InfrastructureError(
                f"sandbox backend {self.name!r} could not start the program: {body['error']}"
            )
        if not reason:
            returncode = self._check_status(report, returncode, stderr)
        return ExecResult(
            returncode,
            stdout,
            stderr,
            timed_out=reason == "timeout",
            out_of_memory=reason == "memory",
            truncated=truncated,
            wall_s=wall_s,
        )

    async def open_process(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str = WORKDIR
    ) -> SandboxProcess:
        command = self._command(self._checked(argv), self._environment(env), self._inner_path(cwd))
        pipes = Pipes(with_stdin=True, with_status=command.status_fd, merge=True)
        try:
            job, ended = await self._spawn(command, pipes.theirs, None)
        except BaseException:
            pipes.close_all()
            raise
        pipes.close_theirs()
        launcher = self._launcher
        assert launcher is not None
        process = LocalProcess(
            pipes.stdin, pipes.outputs[0], self.limits.output_bytes, ended,
            kill=lambda: launcher.notify({"op": "kill", "job": job}),
        )  # fmt: skip
        self._processes.add(process)

        def forget(_: object) -> None:
            self._processes.discard(process)
            if pipes.status >= 0:
                # Kept open until now: a jail whose report cannot be read would die of SIGPIPE.
                os.close(pipes.status)

        ended.add_done_callback(forget)
        return process

    def _inner_path(self, cwd: str) -> str:
        """Return `cwd` as the program sees it. Raises `InputError` unless it is below the session's folder."""
        return "/".join([self.workdir, *files.relative_parts(cwd)])

    def _outer_path(self, path: str) -> str:
        """Return a path inside in the form that `files` takes; differs where `workdir` is not a mount."""
        inside = path == self.workdir or path.startswith(self.workdir + "/")
        return WORKDIR + path[len(self.workdir) :] if inside else path

    # -- files ------------------------------------------------------------------------------------------------

    async def read(self, path: str, max_bytes: int = 16 * MIB) -> bytes:
        self._check_running()
        return await asyncio.to_thread(files.read_file, self._folder, self._outer_path(path), max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        self._check_running()
        if len(data) <= MIB:
            # Into memory: cheaper than a thread's round trip.
            files.write_file(self._folder, self._outer_path(path), data, self._uid)
        else:
            await asyncio.to_thread(files.write_file, self._folder, self._outer_path(path), data, self._uid)

    def _check_running(self) -> None:
        if self._folder < 0:
            raise ConflictError("the sandbox is not running")

    # -- probing ----------------------------------------------------------------------------------------------

    @classmethod
    async def _probe(cls, missing: tuple[Guarantee, ...] = ()) -> Probe:
        """Start a session and run a program in it."""
        box = cls()
        try:
            async with asyncio.timeout(30):
                await box.start(SandboxSpec(language="bash"))
                result = await box.exec(["/bin/sh", "-c", "echo works"], timeout_s=10)
        except (AsyncRLError, OSError, TimeoutError) as error:
            return Probe(cls.name, False, str(error) or type(error).__name__)
        finally:
            with contextlib.suppress(AsyncRLError):
                await box.stop()
        if result.stdout != b"works\n":
            return Probe(cls.name, False, f"a test program ended with {result}")
        lacking = [g for g in Guarantee if g not in cls.guarantees or g in missing]
        assert box._launcher is not None
        if not box._launcher.uids:
            lacking.append(Guarantee.FRESH_UID)
        return Probe(cls.name, True, missing=tuple(dict.fromkeys(lacking)))


class Pipes:
    """The ends of a program's descriptors 0, 1, 2 and, for the jail's own report, 3."""

    def __init__(self, with_stdin: bool, with_status: bool, merge: bool = False) -> None:
        self.stdin, self.status = -1, -1
        self.outputs: list[int] = []
        theirs: list[int] = []
        if with_stdin:
            read_end, self.stdin = os.pipe2(os.O_CLOEXEC)
        else:
            read_end = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        theirs.append(read_end)
        for _ in range(1 if merge else 2):
            ours, write_end = os.pipe2(os.O_CLOEXEC)
            self.outputs.append(ours)
            theirs.append(write_end)
        if merge:
            theirs.append(os.dup(theirs[1]))
        if with_status:
            self.status, write_end = os.pipe2(os.O_CLOEXEC)
            theirs.append(write_end)
        self.theirs = tuple(theirs)

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)

    def close_all(self) -> None:
        self.close_theirs()
        for fd in (self.stdin, self.status, *self.outputs):
            if fd >= 0:
                os.close(fd)


async def _feed(fd: int, data: bytes) -> None:
    try:
        await write_all(fd, data)
    finally:
        os.close(fd)
