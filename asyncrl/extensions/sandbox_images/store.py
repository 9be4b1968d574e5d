"""Images kept by content: each is built once, by whoever asks first, and used by every process that asks later.

    .cache/images/KEY/          layers, work.tar, and last of all image.json
    .cache/images/KEY.lock      held by the process that builds it
    .cache/images/slot-N.lock   held by a build that is young; few are, so that builds do not take the machine

A build that takes long gives its slot to the next, so that some that hang hold up no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from asyncrl.cache import cache_folder, code_digest, whole_file
from asyncrl.errors import AsyncRLError, InfrastructureError
from asyncrl.extensions.sandbox_images.dockerfile import Recipe
from asyncrl.extensions.sandbox_images.engine import ENGINES, unpack
from asyncrl.extensions.sandbox_images.jail import (
    HOST,
    WORK_ARCHIVE,
    BuildLimits,
    check_room,
    follow,
    moved,
    within,
)
from asyncrl.machine import usable_cpus
from asyncrl.sandbox.protocol import RootFiles

SLOTS = max(2, usable_cpus() // 2)
"""Young builds at once on this machine."""
YOUNG_S = 20.0
"""How long a build holds its slot."""
FAILED_S = 600.0
"""How long a failure is remembered: episodes that are played again do not wait for the same build to fail again."""
POLL_S = 0.1
DONE = "image.json"


@dataclass(frozen=True, slots=True)
class Image:
    """A built root file system."""

    root: RootFiles
    env: tuple[tuple[str, str], ...]
    work: Path
    """The work folder's files, a tar archive."""


_builds: dict[tuple[str, int], asyncio.Task[Image]] = {}
"""Those of this process that run, by key and event loop: their end is awaited by all who want the image."""
_failed: dict[str, tuple[float, str]] = {}
"""When a build failed, by the monotonic clock, and why."""


async def image(
    recipe: Recipe, base: str = HOST, limits: BuildLimits | None = None, keep_git_history: bool = False
) -> Image:
    """Return the image of a recipe, built where it has not been. Whoever is cancelled leaves the build running.

    base: an unpacked root file system, `HOST`, or one of `ENGINES`. Raises `InfrastructureError` with the reason where
    the build fails or takes longer than its limit.
    """
    limits = limits or BuildLimits()
    key = _key(recipe, base, limits, keep_git_history)
    failed_at, reason = _failed.get(key, (0.0, ""))
    if reason and time.monotonic() - failed_at < FAILED_S:
        raise InfrastructureError(f"image {recipe.base}: {reason} (not tried again for {FAILED_S:g} s)")
    known = (key, id(asyncio.get_running_loop()))
    if known not in _builds:
        task = asyncio.create_task(_made(key, recipe, base, limits, keep_git_history))
        _builds[known] = task
        task.add_done_callback(lambda done: _forget(known, done))
    return await asyncio.shield(_builds[known])


def _forget(known: tuple[str, int], done: asyncio.Task[Image]) -> None:
    _builds.pop(known, None)
    if not done.cancelled():
        # Nobody may be waiting for it.
        done.exception()


def images_folder() -> Path:
    """Return where images are, made where it is missing."""
    folder = cache_folder().resolve() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    # Programs of an image may be set to run as root: nobody else of this machine starts them.
    os.chmod(folder, 0o700)
    return folder


async def _made(key: str, recipe: Recipe, base: str, limits: BuildLimits, keep_git_history: bool) -> Image:
    folder = images_folder() / key
    try:
        async with _locked(folder.with_name(f"{key}.lock")):
            if not (folder / DONE).exists():
                await _build(folder, recipe, base, limits, keep_git_history)
    except AsyncRLError as error:
        _failed[key] = (time.monotonic(), str(error))
        raise InfrastructureError(f"image {recipe.base}: {error}") from error
    _failed.pop(key, None)
    said = json.loads((folder / DONE).read_text())
    layers = tuple((target, tuple(folders)) for target, folders in said["layers"])
    return Image(RootFiles(layers, said["workdir"]), tuple(map(tuple, said["env"])), folder / WORK_ARCHIVE)


async def _build(
    folder: Path, recipe: Recipe, base: str, limits: BuildLimits, keep_git_history: bool
) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    # What a killed process has left: its lock is ours.
    for place in (partial, folder):
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    partial.mkdir()
    async with slot(folder.parent):
        try:
            if base in ENGINES:
                recipe, base, limits = await _by_engine(recipe, base, partial, limits)
            root = await follow(recipe, base, partial, limits, keep_git_history)
            await asyncio.to_thread(_drop_work, partial)
            os.replace(partial, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
    root = moved(root, partial, folder)
    with whole_file(folder / DONE) as file:
        file.write_text(json.dumps({"layers": root.layers, "workdir": root.workdir, "env": recipe.env}))


async def _by_engine(
    recipe: Recipe, engine: str, folder: Path, limits: BuildLimits
) -> tuple[Recipe, str, BuildLimits]:
    """Have an engine make what a recipe starts from; return what is left to do, in which folder, and in what time."""
    began = time.monotonic()
    making = unpack(engine, recipe.engine_text, recipe.context, folder)
    try:
        async with asyncio.timeout(limits.timeout_s):
            made = await within(making, folder, limits.disk_bytes)
            await check_room(folder, limits.disk_bytes)
    except TimeoutError as error:
        raise InfrastructureError(f"{engine} was not done within the build's time") from error
    left_s = max(1.0, limits.timeout_s - (time.monotonic() - began))
    recipe = replace(
        recipe, env=tuple((dict(recipe.env) | dict(made.env)).items()), workdir=made.workdir or recipe.workdir
    )
    return recipe, str(made.root), replace(limits, timeout_s=left_s)


def _drop_work(folder: Path) -> None:
    for place in folder.glob("*.work"):
        shutil.rmtree(place, ignore_errors=True)


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a file's lock; it is free again when this process ends, however that is."""
    with open(path, "w") as file:
        while not _taken(file.fileno()):
            await asyncio.sleep(POLL_S)
        yield


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.asynccontextmanager
async def slot(folder: Path) -> AsyncIterator[None]:
    """Wait for one of the slots of a folder of images, and hold it for `YOUNG_S` at most."""
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(folder / f"slot-{n}.lock", "w")) for n in range(SLOTS)]
        while (mine := next((file for file in files if _taken(file.fileno())), None)) is None:
            await asyncio.sleep(POLL_S)
        free = asyncio.get_running_loop().call_later(YOUNG_S, fcntl.flock, mine.fileno(), fcntl.LOCK_UN)
        try:
            yield
        finally:
            free.cancel()


def _key(recipe: Recipe, base: str, limits: BuildLimits, keep_git_history: bool) -> str:
    parts = [
        recipe.digest(),
        base,
        keep_git_history,
        limits.allow_hosts,
        code_digest("extensions/sandbox_images"),
    ]
    if base == HOST:
        # Another release of the host is another image.
        with contextlib.suppress(OSError):
            parts.append(Path("/etc/os-release").read_text())
    else:
        parts.append(os.stat(base).st_mtime_ns if os.path.isdir(base) else 0)
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()
