"""Has a container engine of this machine build an image, and unpacks its file system.

An engine follows every line of a Dockerfile and fetches the images that it names; sessions then run in our own jail,
and need no engine. Its layers stay in the engine's own store, so that the next image with the same first lines is made
soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.sandbox_images.dockerfile import Context

ENGINES: Mapping[str, tuple[str, ...]] = {
    # In its own format podman leaves SHELL lines out, with a warning.
    "podman": ("--format", "docker"),
    "docker": (),
}
"""Programs that may stand in `bases`, and options of their builds."""
SHOWN_CHARACTERS = 1500
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Unpacked:
    """An image's file system, and what it says of programs in it."""

    root: Path
    env: tuple[tuple[str, str], ...]
    workdir: str
    """"" where the image says none, or `/`."""


def check_engine(engine: str, key: str) -> None:
    """Raise `ConfigError` where this machine has no such program. key: what names it, for the message."""
    if shutil.which(engine) is None:
        raise ConfigError(
            f"{key}: {engine} is not installed here; install it, or name a folder with an unpacked root file system"
        )


async def unpack(engine: str, text: str, context: Context, folder: Path) -> Unpacked:
    """Build what a Dockerfile says and unpack it below `folder`. Whoever is cancelled ends what has been started.

    Raises `InfrastructureError` with the engine's last output.
    """
    await asyncio.to_thread(_write, folder, text, context)
    try:
        await _run(
            engine, "build", "-q", *ENGINES[engine], "--iidfile", str(folder / "id"), "-f", str(folder / "Dockerfile"),
            str(folder / "context"),
        )  # fmt: skip
        said = await unpack_image(engine, (folder / "id").read_text().strip(), folder / "root")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder / "context", ignore_errors=True)
    env = tuple(
        (name, value) for name, _, value in (one.partition("=") for one in said.get("Env") or ()) if name
    )
    workdir = os.path.normpath(said.get("WorkingDir") or "/")
    return Unpacked(folder / "root", env, "" if workdir == "/" else workdir)


async def fetch(engine: str, name: str) -> str:
    """Return the id of an image, which the engine fetches where it does not have it; what `localhost/` names is never
    fetched. Raises `InfrastructureError` with the engine's last output."""
    asked = (engine, "image", "inspect", "--format", "{{.Id}}", name)
    try:
        found = await _run(*asked)
    except InfrastructureError:
        if name.startswith("localhost/"):
            raise
        await _run(engine, "pull", "-q", name)
        found = await _run(*asked)
    return found.strip().removeprefix("sha256:")


async def unpack_image(engine: str, image: str, root: Path) -> dict[str, Any]:
    """Unpack the files of an image that the engine has into a new folder, and return what the image says of programs
    in it. Raises `InfrastructureError` with the engine's last output."""
    # It is never started, so that any program does.
    container = (await _run(engine, "create", image, "/bin/true")).strip()
    try:
        said: dict[str, Any] = json.loads(
            await _run(engine, "inspect", "--format", "{{json .Config}}", container)
        )
        await _export(engine, container, root)
    finally:
        await asyncio.shield(_run(engine, "rm", "-f", container))
    return said


def _write(folder: Path, text: str, context: Context) -> None:
    (folder / "Dockerfile").write_text(text)
    (folder / "context").mkdir()
    for name, data in context.files.items():
        file = folder / "context" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        file.chmod(0o755 if name in context.executable else 0o644)


async def _export(engine: str, container: str, root: Path) -> None:
    """Unpack a container's files. Device files are left out."""
    root.mkdir()
    owners = ["--same-owner"] if os.geteuid() == 0 else ["--no-same-owner"]
    reading, writing = os.pipe()
    try:
        async with _started([engine, "export", container], stdout=writing) as export:
            os.close(writing)
            writing = -1
            await _run("tar", "-xpf", "-", *owners, "-C", str(root), stdin=reading)
            output = await _end(export)
            if export.returncode:
                raise InfrastructureError(f"{engine} export ended with status {export.returncode}: {output}")
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    await _run("find", str(root), "-xdev", "(", "-type", "b", "-o", "-type", "c", ")", "-delete")


async def _run(*argv: str, stdin: int = asyncio.subprocess.DEVNULL) -> str:
    """Return what a program prints. Raises `InfrastructureError` where it fails."""
    async with _started(argv, stdin=stdin, stdout=asyncio.subprocess.PIPE) as process:
        out, err = await process.communicate()
    if process.returncode:
        words = (out + b"\n" + err).decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]
        raise InfrastructureError(f"{argv[0]} {argv[1]} ended with status {process.returncode}: {words}")
    return out.decode("utf-8", "replace")


async def _end(process: asyncio.subprocess.Process) -> str:
    _, err = await process.communicate()
    return err.decode("utf-8", "replace").strip()[-SHOWN_CHARACTERS:]


@contextlib.asynccontextmanager
async def _started(
    argv: Sequence[str], stdin: int = asyncio.subprocess.DEVNULL, stdout: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that is ended, with what it has started, when the block ends."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=stdin, stdout=stdout, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            # An engine that is asked to end removes what it was building in.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_S)
                    break
