"""An agent program on this machine: installed once from its registry or image, then shown read-only in every sandbox.

It is installed under `.cache/harnesses`, in a folder named by what was asked for, and the versions that it came with
are listed beside it. Nothing is installed in a sandbox.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asyncrl.cache import cache_folder
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.agents.harness.file import SETTING, Harness, Program, harness_path
from asyncrl.extensions.agents.harness.image import FILES, image_id, install_image
from asyncrl.sandbox.protocol import Mount, RootFiles

TARGET = "/opt/harness"
"""Where the program is inside."""
RUNTIME = "/opt/runtime"
"""Where its interpreter is inside, if it can be neither the system's nor under its own path."""
TAKEN = ("/work/", "/tmp/", "/proc/", "/dev/", "/run/", "/etc/", "/lib", "/bin/", "/sbin/")
"""Paths that a sandbox has other things at."""
INSTALL_S = 1800.0
"""The longest that a package may take to install."""
START_S = 60.0
"""The longest that an interpreter may take to start."""
MANAGED = (".pyenv/versions/*", ".local/share/uv/python/*")
"""Where pyenv and uv keep interpreters, below one's home."""
DONE = "installed.json"
PREFIX = "prefix.txt"
"""Names the folder of the interpreter, where that is not the system's."""
SHOWN_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Installed:
    """A program as a sandbox shows it."""

    mounts: tuple[Mount, ...] = ()
    path: str = ""
    """Folders of programs, to stand first in PATH."""
    place: str = ""
    """What `{program}` stands for."""


def install(name: str, harness: Harness) -> Installed:
    """Return a harness's program, installed if it is not there yet; a process that finds another at it waits.

    Raises `ConfigError` for a path that is not there, or a folder that an image does not have or that leads out of
    itself; `UnavailableError` where the registry's client or the engine fails, or a program is missing that it needs.
    """
    for needed in harness.needs:
        if shutil.which(needed) is None:
            raise UnavailableError(f"{SETTING}: {name} needs {needed}, which is not there; install it")
    program = harness.program
    if program is None:
        return Installed()
    if program.path is not None:
        return _of_path(name, program.path)
    folder = _folder(program)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            made = install_image if program.image else _install_npm if program.npm else _install_pip
            (folder / DONE).write_text(json.dumps(made(program, folder), indent=1))
    if program.image:
        return _of_image(program, folder)
    return _of_npm(folder) if program.npm else _of_pip(folder)


def _folder(program: Program) -> Path:
    if program.image:
        return _named(program.image.partition("@")[0], "image", [*image_id(program), program.folder])
    asked = [
        program.npm,
        program.pip,
        program.version,
        sorted(program.packages),
        program.python or sys.version_info[:2],
    ]
    return _named((program.npm or program.pip or "").partition("[")[0], str(program.version), asked)


def _named(name: str, version: str, asked: Sequence[Any]) -> Path:
    digest = hashlib.blake2b(json.dumps(asked).encode(), digest_size=4).hexdigest()
    name = re.sub("[/:]", "-", name.strip("@"))
    return (cache_folder() / "harnesses" / f"{name}-{version}-{digest}").absolute()


def _of_image(program: Program, folder: Path) -> Installed:
    files, place = folder / FILES, str(program.folder)
    path = f"{place}/bin" if (files / "bin").is_dir() else place
    return Installed((Mount(str(files), place),), path, place)


def _of_path(name: str, path: str) -> Installed:
    source = (harness_path(name).parent / path).resolve()
    if not source.exists():
        raise ConfigError(f"{SETTING}: {name}: program.path: there is no {str(source)!r}")
    place = TARGET if source.is_dir() else f"{TARGET}/{source.name}"
    return Installed((Mount(str(source), place),), f"{TARGET}:{TARGET}/bin", place)


def with_places(root: RootFiles, mounts: Sequence[Mount]) -> RootFiles:
    """Return a root file system that has a folder where each folder is mounted: nobody can make one in an image's own
    folders when a sandbox starts."""
    targets = sorted(mount.target for mount in mounts if os.path.isdir(mount.source))
    folder = _named("places", "of", targets)
    for target in targets:
        for place in (*reversed(Path(target).parents), Path(target)):
            below = folder / str(place).lstrip("/")
            below.mkdir(parents=True, exist_ok=True)
            below.chmod(0o755)
    layers = tuple(
        (at, (*folders, str(folder)) if at == "/" and targets else folders) for at, folders in root.layers
    )
    return replace(root, layers=layers)


def _install_npm(program: Program, folder: Path) -> dict[str, str]:
    npm = shutil.which("npm")
    if npm is None:
        raise UnavailableError(f"{SETTING}: {program.npm} needs npm, which is not there; install Node.js")
    packages = [f"{program.npm}@{program.version}", *program.packages]
    _run(
        [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", *packages],
        program,
    )
    lock = json.loads((folder / "package-lock.json").read_text())
    found = lock.get("packages", {}).items()
    return {path.rpartition("node_modules/")[2]: entry.get("version", "") for path, entry in found if path}


def _of_npm(folder: Path) -> Installed:
    node = shutil.which("node")
    mounts, path = [Mount(str(folder), TARGET)], f"{TARGET}/node_modules/.bin"
    if node is not None and not os.path.realpath(node).startswith("/usr/"):
        prefix = str(Path(os.path.realpath(node)).parents[1])
        mounts.append(Mount(prefix, _runtime(prefix)))
        path += f":{_runtime(prefix)}/bin"
    return Installed(tuple(mounts), path, TARGET)


def _install_pip(program: Program, folder: Path) -> dict[str, str]:
    """Make a virtual environment whose programs and interpreter are named by their places inside."""
    packages = [f"{program.pip}=={program.version}", *program.packages]
    interpreter = _interpreter(program)
    _run([*_isolated(interpreter), "-m", "venv", str(folder)], program)
    python = folder / "bin" / "python3"
    pip = [*_isolated(str(python)), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", *packages], program)
    listed = _run([*pip, "list", "--format=json"], program)
    base = os.path.realpath(python)
    if not base.startswith("/usr/"):
        prefix = os.path.realpath(
            _run([*_isolated(interpreter), "-c", "import sys; print(sys.base_prefix)"], program).strip()
        )
        (folder / PREFIX).write_text(prefix)
        base = f"{_runtime(prefix)}/{os.path.relpath(base, prefix)}"
    for entry in (folder / "bin").iterdir():
        if entry.name.startswith("python"):
            entry.unlink()
            entry.symlink_to(base if entry.name == "python3" else "python3")
        elif entry.is_file() and not entry.is_symlink():
            first, _, rest = entry.read_bytes().partition(b"\n")
            if first.startswith(b"#!") and str(folder).encode() in first:
                entry.write_bytes(f"#!{TARGET}/bin/python3\n".encode() + rest)
    (folder / "bin" / "python").unlink(missing_ok=True)
    (folder / "bin" / "python").symlink_to("python3")
    config = folder / "pyvenv.cfg"
    lines = [
        line
        for line in config.read_text().splitlines()
        if not line.startswith(("home", "executable", "command"))
    ]
    config.write_text("\n".join([f"home = {os.path.dirname(base)}", *lines]) + "\n")
    return {entry["name"]: entry["version"] for entry in json.loads(listed)}


def _runtime(prefix: str) -> str:
    """Return where an interpreter's folder is inside: under its own path, at which it finds its libraries, unless a
    sandbox has something else there."""
    return RUNTIME if prefix.startswith(TAKEN) else prefix


def _interpreter(program: Program) -> str:
    """Return the Python that the program runs on. Raises `UnavailableError` where it is not there."""
    if program.python is None:
        return sys.executable
    name = f"python{program.python}"
    # A version manager has a program of that name in PATH for each version that it knows, used here or not.
    managed = [str(path) for folder in MANAGED for path in sorted(Path.home().glob(f"{folder}/bin/{name}"))]
    for found in filter(None, [shutil.which(name), *managed]):
        if _starts(found):
            return found
    raise UnavailableError(f"{SETTING}: {program.pip} needs {name}, which is not there; install it")


def _starts(interpreter: str) -> bool:
    try:
        done = subprocess.run([interpreter, "-I", "-c", ""], capture_output=True, timeout=START_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _isolated(interpreter: str) -> list[str]:
    """Return the command of a Python of any version that does not search the current folder, where a user's `token.py`
    would be what pip imports."""
    return [interpreter, "-I"]


def _of_pip(folder: Path) -> Installed:
    mounts = [Mount(str(folder), TARGET)]
    if (folder / PREFIX).exists():
        prefix = (folder / PREFIX).read_text()
        mounts.append(Mount(prefix, _runtime(prefix)))
    return Installed(tuple(mounts), f"{TARGET}/bin", TARGET)


def _run(command: list[str], program: Program) -> str:
    """Run a registry's client. Raises `UnavailableError` with the end of what it said."""
    what = f"{program.npm or program.pip} {program.version}"
    print(f"installing {what}: {' '.join(command[-3:])}"[:200], file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{SETTING}: {what} was not installed within {INSTALL_S:g} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-SHOWN_CHARACTERS:]
        raise UnavailableError(f"{SETTING}: {what} could not be installed: {said}")
    return done.stdout
