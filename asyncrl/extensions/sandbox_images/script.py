"""Runs a script of an agent's on an image, as RUN lines are run, and shows what it has made as another image's files.

Nothing of it is kept: what the script has written lies in a folder of its own, over the image's, and goes with the
block. The script is not trusted. Nothing that it has made is opened on the host; its work folder and its variables come
through a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.sandbox_images.jail import (
    PLACES,
    TOP,
    BuildJail,
    BuildLimits,
    TooMuchWritten,
    bounds,
    check_room,
    lay_over,
    within,
)
from asyncrl.extensions.sandbox_images.store import Image, images_folder, slot
from asyncrl.sandbox.allow_list import parse
from asyncrl.sandbox.archive import archive
from asyncrl.sandbox.base import in_time
from asyncrl.sandbox.protocol import MIB, WORKDIR, ExecResult, RootFiles, SandboxSpec
from asyncrl.scratch import scratch_folder

LEFT_BYTES = 256 * MIB
COPY_S = 60.0
CONNECT_S = 5.0
VARIABLES = "/tmp/.asyncrl-variables"
RUN = f"""
trap 'status=$?; env -0 > {VARIABLES}; exit $status' EXIT
source "$0"
"""
"""Sources a script, as EnvBench does: what it exports, such as the PATH of a virtual environment, holds afterwards."""
NOT_KEPT = frozenset(("_", "HOME", "LD_AUDIT", "LD_PRELOAD", "OLDPWD", "PWD", "SHLVL", "TMPDIR"))
NOT_KEPT_BEGINNINGS = ("BASH", "PYTEST_")


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What became of a script."""

    problem: str
    """Why it failed; "" where it ended with status 0."""
    output: str
    """The end of what it printed."""
    root: RootFiles
    """What a session sees; without what the script has left where it failed."""
    variables: Mapping[str, str]
    """That it has exported."""
    left: bytes
    """A tar archive of its work folder, without the repository's `.git`."""


@contextlib.asynccontextmanager
async def script_run(image: Image, name: str, script: bytes, limits: BuildLimits) -> AsyncIterator[ScriptRun]:
    """Run a bash script in the work folder of an image, under this name there. What it made lasts as long as the block.

    That a script fails, hangs, writes too much or breaks what a session needs is in `problem`. Raises
    `InfrastructureError` where it could not be run, or failed while a host of `limits.allow_hosts` did not answer.
    """
    parent = images_folder()
    with scratch_folder("script", parent) as folder:
        try:
            async with slot(parent):
                ran = await _run(image, name, script, limits, folder)
            yield ran
        finally:
            await asyncio.to_thread(_remove_layers, folder)


async def _run(image: Image, name: str, script: bytes, limits: BuildLimits, folder: Path) -> ScriptRun:
    root = lay_over(image.root, folder)
    if root.workdir != WORKDIR:
        # Where the agent has worked: its script may say so.
        os.symlink(root.workdir, folder / TOP / WORKDIR.lstrip("/"))
    env = {**dict(image.env), "HOME": "/root"}
    jail = BuildJail()
    try:
        await jail.start(SandboxSpec("bash", bounds(limits), allow_hosts=limits.allow_hosts, root=root))
        put = ["tar", "-xf", "-", "-C", root.workdir, "--no-same-owner"]
        placed = await jail.run(put, env, "/", archive({name: script}), COPY_S)
        if not placed.ok:
            raise InfrastructureError(f"a script cannot be put into its image: {placed.stderr[-500:]!r}")
        argv = ["/bin/bash", "--noprofile", "--norc", "-c", RUN, f"./{name}"]

        async def run(limit_s: float) -> ExecResult:
            call = jail.run(argv, env, root.workdir, b"", limit_s)
            result = await within(call, folder, limits.disk_bytes)
            await check_room(folder, limits.disk_bytes)
            return result

        try:
            result = await in_time(limits.timeout_s, run)
        except TooMuchWritten as error:
            return ScriptRun(str(error), "", image.root, {}, b"")
        output = (result.text + "\n" + result.stderr.decode("utf-8", "replace")).strip()[-4000:]
        if problem := _problem(result):
            await _check_hosts(limits.allow_hosts)
            return ScriptRun(problem, output, image.root, {}, b"")
        said = await jail.run(["cat", VARIABLES], env, "/", b"", COPY_S)
        pack = ["tar", "-C", root.workdir, "--exclude=./.git", "-cf", "-", "."]
        packed = await jail.run(pack, env, "/", b"", COPY_S, LEFT_BYTES)
        if not packed.ok or packed.truncated:
            reason = (
                "too much is left in the work folder" if packed.truncated else "the work folder is broken"
            )
            return ScriptRun(reason, output, image.root, {}, b"")
    finally:
        await jail.stop()
    if broken := _mend_places(folder / TOP, root.workdir):
        return ScriptRun(f"{broken} is no folder any more", output, image.root, {}, b"")
    return ScriptRun("", output, root, variables(said.stdout, env), packed.stdout)


def _problem(result: ExecResult) -> str:
    if result.timed_out:
        return "it was not done in time"
    if result.out_of_memory:
        return "it took too much memory"
    return "" if result.ok else f"it ended with status {result.returncode}"


def variables(said: bytes, before: Mapping[str, str]) -> dict[str, str]:
    """Return what was exported, of the output of `env -0`; without what belongs to a session or steers its tests."""
    found: dict[str, str] = {}
    for entry in said.split(b"\0"):
        with contextlib.suppress(UnicodeDecodeError):
            name, equals, value = entry.decode().partition("=")
            kept = name not in NOT_KEPT and not name.startswith(NOT_KEPT_BEGINNINGS)
            if equals and kept and name.isidentifier() and not name.lower().endswith("_proxy"):
                found[name] = value
    return {name: value for name, value in found.items() if before.get(name) != value}


async def _check_hosts(hosts: tuple[str, ...]) -> None:
    """Raise `InfrastructureError` naming a host that does not answer: a script that needs it fails for no fault of its
    own."""
    by_host: dict[str, list[int]] = {}
    for host, port in sorted(parse(hosts)):
        by_host.setdefault(host, []).append(port)
    for host, ports in by_host.items():
        if not any([await _answers(host, port) for port in ports]):
            raise InfrastructureError(f"a script failed, and its host {host} cannot be reached")


async def _answers(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _mend_places(upper: Path, workdir: str) -> str:
    """Make the places where sessions mount something such that they can; return one that the script has replaced by
    something else than a folder, "" for none."""
    link = upper / WORKDIR.lstrip("/")
    if link.is_symlink():
        link.unlink()
        link.mkdir()
    for place in (*PLACES, workdir.lstrip("/")):
        at = upper
        for part in ("", *place.split("/")):
            at /= part
            try:
                mode = at.lstat().st_mode
            except FileNotFoundError:
                # As it is in the image.
                break
            if not stat.S_ISDIR(mode):
                return f"/{at.relative_to(upper)}"
            at.chmod(mode | 0o555)
    return ""


def _remove_layers(folder: Path) -> None:
    for place in folder.iterdir():
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
