"""Task folders in Harbor's layout, read from disk or made in memory.

instruction.md       what the agent is told
task.toml            times, limits, variables, hosts, docker_image: `asyncrl.envs.terminal.task_toml`
environment/         files the agent finds; a Dockerfile says where, and what else is made
tests/               test.sh (writes reward.txt or reward.json) or test_outputs.py
solution/solve.sh    the scripted expert
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from asyncrl.envs.terminal.task_toml import TaskToml, read_task_toml
from asyncrl.errors import ConfigError
from asyncrl.sandbox.images.dockerfile import Context, CopyStep, Recipe, for_engine, parse
from asyncrl.sandbox.protocol import WORKDIR
from asyncrl.textfile import read_text, read_toml

MAX_BYTES = 16 * 1024 * 1024
"""All files of one part of a task together."""


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """One task. Files by their path: below the work folder, below `tests/`."""

    name: str
    instruction: str
    files: Mapping[str, bytes]
    tests: Mapping[str, bytes]
    solution: str = ""
    image: str = ""
    """For backends that take one by name."""
    toml: TaskToml = field(default_factory=TaskToml)
    executable: frozenset[str] = frozenset()
    """Paths in `files` that may be run."""
    workdir: str = "/app"
    """The name of the work folder in the texts."""
    guesses: tuple[str, ...] = field(default=())
    """Commands that a random policy draws from."""
    recipe: Recipe | None = None
    """How the image is made in which `files` lie, where one is made; `files` is empty then."""


def read_folder(
    path: str | Path, ignore_run: bool = False, engine_builds: Callable[[str], bool] = lambda image: False
) -> TaskFolder:
    """Read a task folder. Raises `ConfigError` naming what is missing or not supported.

    Without RUN lines, or with `ignore_run`, the WORKDIR and COPY lines of a Dockerfile say where its files lie.
    engine_builds: says of an image's name whether a container engine fetches it, and builds what starts from it.
    """
    path = Path(path)
    try:
        instruction = read_text(_own(path / "instruction.md", path))
        toml, solve = path / "task.toml", path / "solution" / "solve.sh"
        settings = read_task_toml(read_toml(_own(toml, path)) if toml.exists() else {}, path)
        context, modes = _read_files(path / "environment", path)
        tests, _ = _read_files(path / "tests", path)
        solution = read_text(_own(solve, path)) if solve.exists() else ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"terminal task {path}: {error}") from error
    if "test.sh" not in tests and "test_outputs.py" not in tests:
        raise ConfigError(f"terminal task {path}: tests/ must hold test.sh or test_outputs.py")
    image = settings.docker_image
    recipe = _by_engine(Context(context, frozenset(modes)), image, ignore_run, engine_builds)
    by_engine = recipe is not None
    recipe = recipe or _recipe(path, Context(context, frozenset(modes)), ignore_run)
    if settings.workdir:
        last = f"{recipe.engine_text}\nWORKDIR {settings.workdir}\n" if by_engine else ""
        recipe = replace(recipe, workdir=settings.workdir, engine_text=last)
    built = by_engine or recipe.runs
    workdir, copies = _places(path, recipe, built)
    files = {target: context[source] for source, target in copies.items()}
    executable = frozenset(target for source, target in copies.items() if source in modes)
    return TaskFolder(
        path.name,
        instruction,
        files,
        tests,
        solution,
        "" if by_engine else image,
        settings,
        executable,
        workdir,
        recipe=replace(recipe, workdir=workdir) if built else None,
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


def _recipe(path: Path, context: Context, ignore_run: bool) -> Recipe:
    """Return what the Dockerfile says; without one, that all files of the context lie in the work folder."""
    if "Dockerfile" not in context.files:
        return parse("WORKDIR /app\nCOPY . .", context)
    text = context.files["Dockerfile"].decode("utf-8", "replace")
    return parse(text, context, f"terminal task {path}: environment/Dockerfile", ignore_run)


def _by_engine(
    context: Context, image: str, ignore_run: bool, engine_builds: Callable[[str], bool]
) -> Recipe | None:
    """Return what a container engine makes of the task: its image by name, as harbor prefers, or its Dockerfile; None
    where no engine does."""
    if ignore_run:
        return None
    text = context.files.get("Dockerfile", b"").decode("utf-8", "replace")
    if image and engine_builds(image):
        workdir = for_engine(text, context).workdir
        return replace(for_engine(f"FROM {image}\n", Context({})), workdir=workdir)
    recipe = for_engine(text, context)
    return recipe if recipe.base and engine_builds(recipe.base) else None


def _places(path: Path, recipe: Recipe, built: bool) -> tuple[str, dict[str, str]]:
    """Return the work folder, and the place below it of each file of the build context; none where an image is
    built."""
    base = recipe.workdir if recipe.workdir != "/" else "/app"
    if built:
        return base, {}
    copies = {
        name: target for step in recipe.steps if isinstance(step, CopyStep) for target, name in step.targets
    }
    inside = {source: posixpath.relpath(target, base) for source, target in copies.items()}
    outside = [source for source, target in inside.items() if target.startswith("..")]
    if outside:
        raise ConfigError(f"terminal task {path}: {outside[0]!r} is copied to a place outside of {base}")
    return base, inside


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
