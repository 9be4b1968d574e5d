"""An agent program from a container image: one folder of it, kept as this machine's engine has fetched it.

A sandbox shows the folder at the path that it has in the image, so that absolute paths in it hold. Nothing else of the
image is there.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import shutil
import struct
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.errors import ConfigError, InfrastructureError, UnavailableError
from asyncrl.extensions.agents.harness.file import SETTING, Program
from asyncrl.extensions.sandbox_images.engine import fetch, unpack_image

FILES = "files"
"""The program's files in its installation, which a sandbox shows."""
ENGINE = "podman"
FETCH_S = 1800.0
"""The longest that an engine may take for an image."""
SHOWN = 5
"""So many names a message lists."""
HEAD_BYTES = 4096
T = TypeVar("T")


def image_id(program: Program) -> tuple[str, str]:
    """Return what names the content of a program's image: its name with a digest, or its name and the id that the
    engine has for it now. Raises `UnavailableError`."""
    name = str(program.image)
    if "@" in name:
        return name, ""
    return name, _of_engine(program, fetch(_engine(program), name))


def install_image(program: Program, folder: Path) -> dict[str, str]:
    """Fetch a program's image and keep the files of its folder; return what was fetched.

    folder: of the installation, empty. Raises `UnavailableError` where the engine fails, `ConfigError` where the image
    has no such folder or a link leads out of it.
    """
    engine, name, inside = _engine(program), str(program.image), str(program.folder)
    print(f"installing {inside} of {name}: {engine}", file=sys.stderr, flush=True)
    root = folder / "root"

    async def unpacked() -> str:
        found = await fetch(engine, name)
        await unpack_image(engine, found, root)
        return found

    try:
        found = _of_engine(program, unpacked())
        os.rename(_below(root, inside, name), folder / FILES)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    _check_links(folder / FILES, inside, name)
    _open_to_all(folder / FILES)
    for file, needed in _missing(folder / FILES, inside):
        print(
            f"{file} of {name} needs {needed}, which is neither in {inside} nor on this machine: it starts only in "
            "images of tasks that have it",
            file=sys.stderr,
            flush=True,
        )
    return {"image": name, "id": found, "folder": inside, "engine": engine}


def _engine(program: Program) -> str:
    """Return the program that fetches images. Raises `UnavailableError` where this machine has none of that name."""
    engine = program.engine or ENGINE
    if shutil.which(engine) is None:
        other = "docker" if engine == "podman" else "podman"
        raise UnavailableError(
            f"{SETTING}: program.engine: {engine} is not installed here, which must be asked for {program.image}; "
            f"install it, or give engine = {other!r} if you have that"
        )
    return engine


def _of_engine(program: Program, asked: Coroutine[Any, Any, T]) -> T:
    """Return what an engine returns. Raises `UnavailableError`."""

    async def bounded() -> T:
        async with asyncio.timeout(FETCH_S):
            return await asked

    try:
        return asyncio.run(bounded())
    except TimeoutError as error:
        raise UnavailableError(
            f"{SETTING}: program.image: {program.image} was not fetched within {FETCH_S:g} s"
        ) from error
    except InfrastructureError as error:
        raise UnavailableError(f"{SETTING}: program.image: {program.image}: {error}") from error


def _below(root: Path, inside: str, name: str) -> Path:
    """Return where the folder lies in the unpacked image. Raises `ConfigError` with what the image has there."""
    place = root
    for part in inside.strip("/").split("/"):
        before, place = place, place / part
        at = f"/{place.relative_to(root)}"
        if place.is_symlink():
            raise ConfigError(
                f"{SETTING}: program.folder: {at} of {name} is a link to {os.readlink(place)}; name the folder itself"
            )
        if place.is_dir():
            continue
        found = sorted(entry.name for entry in before.iterdir())
        what = "is a file" if place.exists() else "is not there"
        raise ConfigError(
            f"{SETTING}: program.folder: {at} of {name} {what}, got {inside!r}; allowed is a folder of the image; "
            f"{posixpath.normpath(f'/{before.relative_to(root)}')} has {_some(found) or 'nothing'}"
        )
    return place


def _check_links(files: Path, inside: str, name: str) -> None:
    """Raise `ConfigError` where links of the folder lead out of it: a sandbox has nothing of the image there."""
    out = []
    for place, folders, others in os.walk(files):
        for entry in (*folders, *others):
            path = os.path.join(place, entry)
            if not os.path.islink(path):
                continue
            at = posixpath.join(inside, os.path.relpath(path, files))
            target = os.readlink(path)
            if not f"{posixpath.normpath(posixpath.join(posixpath.dirname(at), target))}/".startswith(
                f"{inside}/"
            ):
                out.append(f"{at} -> {target}")
    if out:
        raise ConfigError(
            f"{SETTING}: program.folder: links lead out of {inside} of {name}, and a sandbox has nothing else of the "
            f"image: {_some(sorted(out))}; name a folder with all that the program needs, or copy it in when you build "
            "the image"
        )


def _open_to_all(files: Path) -> None:
    """Have everyone read what an image may give one user alone, and nobody run it as another user."""
    for place, _, others in os.walk(files):
        os.chmod(place, 0o755)
        for path in (os.path.join(place, entry) for entry in others):
            if not os.path.islink(path):
                mode = os.stat(path).st_mode & 0o777
                os.chmod(path, mode | (0o755 if mode & 0o111 else 0o644))


def _missing(files: Path, inside: str) -> Iterator[tuple[str, str]]:
    """Yield programs of the folder and what they are started with, where that is not there."""
    programs = files / "bin" if (files / "bin").is_dir() else files
    for file in sorted(programs.iterdir()):
        if file.is_symlink() or not file.is_file() or not os.access(file, os.X_OK):
            continue
        needed = _started_with(file)
        if needed.startswith(f"{inside}/"):
            there = os.path.lexists(files / needed[len(inside) + 1 :])
        else:
            there = (
                not needed or shutil.which(needed, mode=os.F_OK) is not None or (programs / needed).exists()
            )
        if not there:
            yield f"{inside}/{file.relative_to(files)}", needed


def _started_with(file: Path) -> str:
    """Return the interpreter or loader that a program names; "" for none."""
    with open(file, "rb") as opened:
        head = opened.read(HEAD_BYTES)
    if head.startswith(b"#!"):
        words = head[2:].partition(b"\n")[0].decode("utf-8", "replace").split()
        by_env = words and posixpath.basename(words[0]) == "env" and len(words) > 1 and words[1][0] not in "-"
        return words[1] if by_env else words[0] if words else ""
    if head[:6] != b"\x7fELF\x02\x01":
        return ""
    (table,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
    for number in range(count):
        at = table + number * size
        if at + size > len(head):
            break
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, at)
        if kind == 3:
            return head[offset : offset + length].rstrip(b"\0").decode("utf-8", "replace")
    return ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
