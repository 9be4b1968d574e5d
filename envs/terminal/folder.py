"""Task folders in Harbor's layout, read from disk or made in memory.

instruction.md       what the agent is told
task.toml            [metadata] difficulty; [verifier] timeout_sec; [environment] docker_image
environment/         files the agent finds; a Dockerfile's WORKDIR and COPY lines say where
tests/               test.sh (writes reward.txt or reward.json) or test_outputs.py
solution/solve.sh    the scripted expert
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.sandbox.protocol import WORKDIR
from asyncrl.textfile import read_text, read_toml

MAX_BYTES = 16 * 1024 * 1024
"""All files of one part of a task together."""
NOT_COPIED = {"Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore"}


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """One task. Files by their path: below the work folder, below `tests/`."""

    name: str
    instruction: str
    files: Mapping[str, bytes]
    tests: Mapping[str, bytes]
    solution: str = ""
    image: str = ""
    verifier_timeout_s: float = 60.0
    said_timeout_s: float = 0.0
    """The same where the folder says it, else 0."""
    executable: frozenset[str] = frozenset()
    """Paths in `files` that may be run."""
    workdir: str = "/app"
    """The name of the work folder in the texts."""
    guesses: tuple[str, ...] = field(default=())
    """Commands that a random policy draws from."""


def read_folder(path: str | Path, ignore_run: bool = False) -> TaskFolder:
    """Read a task folder. Raises `ConfigError` naming what is missing or not supported.

    A Dockerfile is not built. Of its lines, WORKDIR and COPY are followed; RUN lines are refused unless `ignore_run`.
    """
    path = Path(path)
    try:
        instruction = read_text(_own(path / "instruction.md", path))
        toml, solve = path / "task.toml", path / "solution" / "solve.sh"
        settings = read_toml(_own(toml, path)) if toml.exists() else {}
        context, modes = _read_files(path / "environment", path)
        tests, _ = _read_files(path / "tests", path)
        solution = read_text(_own(solve, path)) if solve.exists() else ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"terminal task {path}: {error}") from error
    if "test.sh" not in tests and "test_outputs.py" not in tests:
        raise ConfigError(f"terminal task {path}: tests/ must hold test.sh or test_outputs.py")
    workdir, copies = _dockerfile(path, context, ignore_run)
    files = {target: context[source] for source, target in copies.items()}
    executable = frozenset(target for source, target in copies.items() if source in modes)
    timeout_s = float(settings.get("verifier", {}).get("timeout_sec", 0.0))
    image = settings.get("environment", {}).get("docker_image", "")
    return TaskFolder(
        path.name,
        instruction,
        files,
        tests,
        solution,
        image,
        timeout_s or 60.0,
        timeout_s,
        executable,
        workdir,
    )


def find_folders(path: str | Path) -> list[Path]:
    """Return the task folders below `path` by name. Raises `ConfigError` when there is none, and for a link to one
    elsewhere."""
    found = sorted(p.parent for p in Path(path).glob("*/instruction.md"))
    if not found:
        raise ConfigError(f"env.config.folder: {path}: holds no folder with an instruction.md")
    for folder in found:
        try:
            _own(folder, Path(path))
        except ValueError as error:
            raise ConfigError(f"env.config.folder: {error}") from error
    return found


def _own(path: Path, folder: Path) -> Path:
    """Return a path that lies in `folder`. Raises `ValueError` for one that a link leads out of it: whoever made the
    folder would have this machine's files shown to the agent."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is, or lies behind, a link to {path.resolve()}, which is not in {folder}")
    return path


def _read_files(folder: Path, task: Path) -> tuple[dict[str, bytes], set[str]]:
    """Return contents by relative path, and the executable paths. Links, and what lies behind them, are left out."""
    inside = _own(folder, task).resolve()
    files: dict[str, bytes] = {}
    modes: set[str] = set()
    total = 0
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or not path.resolve().is_relative_to(inside):
            continue
        name = str(path.relative_to(folder))
        total += path.stat().st_size
        if total > MAX_BYTES:
            raise ValueError(f"{folder.name}/ holds more than {MAX_BYTES} bytes")
        files[name] = path.read_bytes()
        if path.stat().st_mode & 0o100:
            modes.add(name)
    return files, modes


def _dockerfile(path: Path, context: Mapping[str, bytes], ignore_run: bool) -> tuple[str, dict[str, str]]:
    """Return the work folder, and the place of each file of the build context below it."""
    plain = {name: name for name in context if name not in NOT_COPIED}
    if "Dockerfile" not in context:
        return "/app", plain
    workdir, copies = "/", {}
    text = context["Dockerfile"].decode("utf-8", "replace").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    for word, rest in (line for line in lines if len(line) == 2):
        if word.upper() == "WORKDIR":
            workdir = posixpath.join(workdir, rest.strip())
        elif word.upper() == "RUN" and not ignore_run:
            raise ConfigError(
                f"terminal task {path}: environment/Dockerfile runs {rest[:80]!r}, and images are not built here; "
                "set ignore_run = true in env.config if the task can do without"
            )
        elif word.upper() in ("COPY", "ADD"):
            copies.update(_copied(rest, workdir, plain))
    base = workdir if workdir != "/" else "/app"
    inside = {source: posixpath.relpath(target, base) for source, target in copies.items()}
    outside = [source for source, target in inside.items() if target.startswith("..")]
    if outside:
        raise ConfigError(f"terminal task {path}: {outside[0]!r} is copied to a place outside of {base}")
    return base, inside


def _copied(arguments: str, workdir: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return what one COPY line copies, and where."""
    *sources, target = [part for part in shlex.split(arguments) if not part.startswith("--")]
    target = posixpath.join(workdir, target) + (
        "/" if target.endswith(("/", ".")) or len(sources) > 1 else ""
    )
    found = {}
    for source in (posixpath.normpath(s) for s in sources):
        for name in names:
            if name == source:
                whole = target.endswith("/")
                found[name] = posixpath.normpath(target + posixpath.basename(name) if whole else target)
            elif source == "." or name.startswith(source + "/"):
                below = name if source == "." else name[len(source) + 1 :]
                found[name] = posixpath.normpath(posixpath.join(target, below))
    return found


def rename_paths(text: str, workdir: str, tests: str = "", logs: str = "") -> str:
    """Return a text with Harbor's fixed paths (`workdir`, /tests, /logs/verifier) replaced by those of the sandbox."""
    for theirs, ours in (("/logs/verifier", logs), ("/tests", tests), (workdir.rstrip("/"), WORKDIR)):
        if ours and theirs:
            text = _replace_path(text, theirs, ours)
    return text


def _replace_path(text: str, theirs: str, ours: str) -> str:
    """Replace a path that stands alone or is the start of a longer one: /app and /app/x, not /apple, /srv/app or
    /app.py."""
    return re.sub(rf"(?<![\w.\-/]){re.escape(theirs)}(?![\w\-]|\.\w)", ours, text)
