"""Follows a recipe in a jail: a folder laid over a root file system takes what the steps write.

The jail is bubblewrap's, with `/` writable. With root its programs are root with the few capabilities that container
engines give, so that packages can own files; without, they are root of a user namespace that owns nothing else. They
see no file of the host but the base's and reach no host but those of `allow_hosts`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import shutil
import tarfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.sandbox_images.dockerfile import Context, CopyStep, FolderStep, Recipe, RunStep, Step
from asyncrl.extensions.sandbox_images.scrub import SCRUB
from asyncrl.sandbox import allow_list
from asyncrl.sandbox.bubblewrap import STATUS_FD, BubblewrapSandbox
from asyncrl.sandbox.jail.folders import ETC, ETC_COPIED
from asyncrl.sandbox.local import Command, rlimits
from asyncrl.sandbox.protocol import MIB, ExecResult, Limits, Mount, RootFiles, SandboxSpec

T = TypeVar("T")
HOST = "host"
"""The base that is this machine's own programs."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETGID", "SETUID", "SETFCAP", "SYS_CHROOT")
OUT = "/.asyncrl-out"
TOP = "layer"
WORK_ARCHIVE = "work.tar"
PLACES = ("work", "tmp", "dev", "proc", "opt/python", "opt/harness", "tests", "logs/verifier")
"""Where sessions mount something."""
SHOWN_CHARACTERS = 1500
PROCESSES = 4096
"""Alive at once in a jail."""
LEAST_S = 0.1
EPOCH_S = 1_000_000_000
"""Time of copied files, so that equal recipes give equal files."""


@dataclass(frozen=True, slots=True)
class BuildLimits:
    timeout_s: float = 600.0
    """For all steps together."""
    memory_bytes: int = 4096 * MIB
    disk_bytes: int = 8192 * MIB
    """What the steps may leave."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that RUN lines reach, as in `SandboxSpec.allow_hosts`."""


class TooMuchWritten(InfrastructureError):
    """What ran in a jail has written more than fits."""


class BuildJail(BubblewrapSandbox):
    """A session in which `/` is written: into the top folder of each of the root's layers."""

    name: ClassVar[str] = "bubblewrap"

    def _options(self, env: dict[str, str], cwd: str, judging: bool = False) -> list[str]:
        assert self.spec.root is not None
        options = [self._executable, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
        options += ["--new-session", "--hostname", "build", "--clearenv"]
        if os.geteuid() != 0:
            options += ["--unshare-user", "--uid", "0", "--gid", "0"]
        options += ["--cap-drop", "ALL", *(w for c in CAPABILITIES for w in ("--cap-add", f"CAP_{c}"))]
        for name, value in env.items():
            options += ["--setenv", name, value]
        for target, folders in self.spec.root.layers:
            for folder in folders[:-1]:
                options += ["--overlay-src", self._exposed_layers[folder]]
            options += ["--overlay", folders[-1], f"{folders[-1]}.work", target]
        options += ["--proc", "/proc", "--dev", "/dev", "--bind", f"{self._path}/tmp", "/tmp"]
        for mount, source in zip(self.spec.mounts, self._exposed, strict=True):
            options += ["--bind" if mount.writable else "--ro-bind", source, mount.target]
        return [*options, "--chdir", cwd]

    def _command(self, argv: list[str], env: dict[str, str], cwd: str, judging: bool = False) -> Command:
        network, hosts = self._network(judging)
        if hosts:
            env = allow_list.environment(hosts) | env
        options = [*self._options(env, cwd), "--json-status-fd", str(STATUS_FD), "--seccomp", "{filter}"]
        # The kernel does not count root's processes: the launcher does.
        bounded = {k: v for k, v in rlimits(self.limits).items() if k != "NPROC"}
        return Command(
            [*options, "--", *argv], {}, rlimits=bounded, status_fd=True, keep_user=True, network=network,
            most_processes=self.limits.processes,
        )  # fmt: skip

    async def run(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: str,
        stdin: bytes,
        timeout_s: float,
        max_output_bytes: int = MIB,
    ) -> ExecResult:
        """Run a program of a step, in any folder."""
        command = self._command(list(argv), env, cwd)
        return await self._run_command(command, stdin, timeout_s, max_output_bytes)


def bounds(limits: BuildLimits) -> Limits:
    """Return the limits of a jail in which these hold."""
    return Limits(
        wall_s=limits.timeout_s, cpu_s=max(1, int(4 * limits.timeout_s)), memory_bytes=limits.memory_bytes,
        address_space_bytes=0, processes=PROCESSES, open_files=4096, file_bytes=limits.disk_bytes,
        disk_bytes=1024 * MIB,
    )  # fmt: skip


async def follow(
    recipe: Recipe, base: str, folder: Path, limits: BuildLimits, keep_git_history: bool = False
) -> RootFiles:
    """Follow the steps into `folder`, which is empty, and return what sessions see.

    base: an unpacked root file system, or `HOST`. The work folder's files are in `folder / WORK_ARCHIVE`. Raises
    `InfrastructureError` with the line that failed, was not done in time or left too much, and its last output.
    """
    ends = asyncio.get_running_loop().time() + limits.timeout_s
    root = _lay(base, folder)
    (folder / "out").mkdir()
    spec = SandboxSpec(
        "bash", bounds(limits), (Mount(str(folder / "out"), OUT, writable=True),),
        allow_hosts=limits.allow_hosts, root=RootFiles(root.layers, recipe.workdir),
    )  # fmt: skip
    jail = BuildJail()
    try:
        await jail.start(spec)
        steps: list[Step] = [*recipe.steps, *_last_steps(recipe.workdir, keep_git_history)]
        for step in steps:
            left_s = ends - asyncio.get_running_loop().time()
            await _one(jail, step, recipe.context, max(LEAST_S, left_s), folder, limits.disk_bytes)
        await check_room(folder, limits.disk_bytes)
    finally:
        await jail.stop()
    os.replace(folder / "out" / WORK_ARCHIVE, folder / WORK_ARCHIVE)
    shutil.rmtree(folder / "out")
    return RootFiles(root.layers, recipe.workdir)


def _lay(base: str, folder: Path) -> RootFiles:
    """Make the folders that take what is written, over those of the base."""
    if base == HOST:
        _skeleton(folder / "skeleton")
        below = [("/", str(folder / "skeleton")), ("/usr", "/usr")]
        below += [
            (f"/{name}", f"/{name}") for name in ("lib", "lib64", "lib32", "bin", "sbin") if _real(name)
        ]
    elif os.path.isdir(base):
        below = [("/", os.path.realpath(base))]
    else:
        raise ConfigError(
            f"image base {base!r} is no folder with an unpacked root file system, and not {HOST!r}"
        )
    root = lay_over(RootFiles(tuple((target, (lower,)) for target, lower in below), "/"), folder)
    for name in PLACES:
        (folder / TOP / name).mkdir(parents=True, exist_ok=True)
    return root


def lay_over(root: RootFiles, folder: Path) -> RootFiles:
    """Return the same with a folder over each path, in `folder`, that takes what is written; that of `/` is `TOP`."""
    layers = []
    for target, folders in root.layers:
        upper = folder / f"{TOP}{target.rstrip('/').replace('/', '-')}"
        upper.mkdir()
        Path(f"{upper}.work").mkdir()
        layers.append((target, (*folders, str(upper))))
    return RootFiles(tuple(layers), root.workdir)


def _real(name: str) -> bool:
    return os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")


def _skeleton(root: Path) -> None:
    """Make what a root file system has beside /usr: links, empty folders and an /etc without secrets."""
    for name in ("usr", "etc", "home", "opt", "root", "srv", "mnt", "run", "var/lib", "var/log", "var/tmp"):
        (root / name).mkdir(parents=True)
    os.chmod(root / "var/tmp", 0o1777)
    for name in ("lib", "lib64", "lib32", "bin", "sbin"):
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            (root / name).mkdir()
    for pattern in ETC_COPIED:
        for source in Path("/").glob(pattern.lstrip("/")):
            target = root / source.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy(source, target, follow_symlinks=False)
    for name, text in ETC.items():
        (root / "etc" / name).write_text(text)


def _last_steps(workdir: str, keep_git_history: bool) -> list[Step]:
    """What is done behind the recipe's own steps: repositories forget their future, and the work folder is packed."""
    env = (("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("HOME", "/tmp"))
    pack = f'mkdir -p "$0" && chmod a+rx /root 2>/dev/null; tar -C "$0" -cf {OUT}/{WORK_ARCHIVE} .'
    scrub = RunStep(("/bin/sh", "-c", SCRUB, workdir), env, "/", "the scrub of git's history")
    packing = RunStep(("/bin/sh", "-c", pack, workdir), env, "/", "packing the work folder")
    return [FolderStep(workdir), *([] if keep_git_history else [scrub]), packing]


async def _one(
    jail: BuildJail, step: Step, context: Context, timeout_s: float, folder: Path, most_bytes: int
) -> None:
    plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    if isinstance(step, RunStep):
        line, call = step.line, jail.run(step.argv, dict(step.env), step.cwd, b"", timeout_s)
    elif isinstance(step, FolderStep):
        line, call = f"WORKDIR {step.path}", jail.run(["mkdir", "-p", step.path], plain, "/", b"", timeout_s)
    else:
        line, argv = "COPY", ["tar", "-xf", "-", "-C", "/", "--keep-directory-symlink", "--no-same-owner"]
        call = jail.run(argv, plain, "/", _packed(step, context), timeout_s)
    try:
        result = await within(call, folder, most_bytes)
    except InfrastructureError as error:
        raise InfrastructureError(f"{line[:200]!r}: {error}") from error
    output = (result.text + "\n" + result.stderr.decode("utf-8", "replace")).strip()[-SHOWN_CHARACTERS:]
    if result.timed_out:
        raise InfrastructureError(
            f"{line[:200]!r} was not done within the build's time; last output: {output}"
        )
    if result.out_of_memory:
        raise InfrastructureError(f"{line[:200]!r} took too much memory; last output: {output}")
    if not result.ok:
        hint = "" if jail.spec.allow_hosts else " (RUN lines reach no host unless build_hosts names it)"
        raise InfrastructureError(f"{line[:200]!r} ended with status {result.returncode}{hint}: {output}")


def _packed(step: CopyStep, context: Context) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for target, name in step.targets:
            info = tarfile.TarInfo(target.lstrip("/"))
            info.size, info.mtime = len(context.files[name]), EPOCH_S
            info.mode = 0o755 if name in context.executable else 0o644
            tar.addfile(info, io.BytesIO(context.files[name]))
    return out.getvalue()


async def within(call: Coroutine[Any, Any, T], folder: Path, most_bytes: int) -> T:
    """Return what a call returns that writes below a folder.

    Raises `TooMuchWritten` when it is found to have written more than `most_bytes`; it is then cancelled. What is
    written between the last look and the end is for the caller to look at.
    """
    running, watch = asyncio.create_task(call), asyncio.create_task(_watch(folder, most_bytes))
    try:
        await asyncio.wait((running, watch), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            watch.result()
        return running.result()
    finally:
        for task in (running, watch):
            task.cancel()
        await asyncio.gather(running, watch, return_exceptions=True)


async def _watch(folder: Path, most_bytes: int) -> None:
    """Raise `TooMuchWritten` once the steps have written more than `most_bytes`."""
    while True:
        await asyncio.sleep(2.0)
        await check_room(folder, most_bytes)


async def check_room(folder: Path, most_bytes: int) -> None:
    """Raise `TooMuchWritten` where more than `most_bytes` lie below a folder."""
    taken = await asyncio.to_thread(_taken_bytes, folder)
    if taken > most_bytes:
        raise TooMuchWritten(f"more was written than fits: {taken} bytes of {most_bytes}")


def _taken_bytes(folder: Path) -> int:
    taken = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                taken += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue
    return taken


def moved(root: RootFiles, before: Path, after: Path) -> RootFiles:
    """Return the same where the build's folder has been renamed."""

    def place(folder: str) -> str:
        return str(after) + folder[len(str(before)) :] if folder.startswith(f"{before}/") else folder

    return dataclasses.replace(
        root, layers=tuple((target, tuple(map(place, folders))) for target, folders in root.layers)
    )
