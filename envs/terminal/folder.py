"""Task folders in Harbor's layout, read from disk or made in memory.

instruction.md       what the agent is told
task.toml            times, limits, variables, hosts, docker_image: `asyncrl.envs.terminal.task_toml`
environment/         files the agent finds; a Dockerfile says where, and what else is made
tests/               test.sh (writes reward.txt or reward.json) or test_outputs.py; a Dockerfile, where the tests have
                     an environment of their own
solution/solve.sh    the scripted expert

A task of several steps has steps/NAME/ with instruction.md, tests/, solution/ and workdir/ (files that come into the
work folder before the step, of which setup.sh is run) for each; its own tests/ and solution/ are for all of them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from asyncrl.envs.terminal.artifacts import ARTIFACTS, KEEPER, KEPT
from asyncrl.envs.terminal.task_toml import StepToml, TaskToml, read_steps, read_strategy, read_task_toml
from asyncrl.errors import ConfigError
from asyncrl.extensions.sandbox_images.dockerfile import (
    Context,
    CopyStep,
    FolderStep,
    Recipe,
    for_engine,
    parse,
)
from asyncrl.sandbox.protocol import WORKDIR
from asyncrl.textfile import read_text, read_toml

TESTS = "/tests"
SETUP = "setup.sh"
"""The file of a step that is run before it."""
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
    """How the image is made in which `files` lie, where one is made."""
    verifier: TaskFolder | None = None
    """The environment of the tests where it is their own, with its `files`, `tests` and image."""
    tests_in_image: bool = False
    """Whether the tests are what the image holds in `/tests`."""
    start: str = ""
    """Where the tests start; "" for the work folder."""
    steps: tuple[TaskStep, ...] = ()
    """What is asked one after the other; none for a task that is asked at once."""
    strategy: Literal["mean", "final"] = "mean"
    """How the rewards of steps make that of the task."""


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One of the steps of a task."""

    name: str
    work: TaskFolder
    """The task as this step asks and judges it."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What comes into the work folder before it, by path there."""
    executable: frozenset[str] = frozenset()
    min_reward: float | None = None
    """With less the steps after it are not played."""

    def prepared(self) -> dict[str, bytes]:
        """Return the files, with the sandbox's paths in the setup."""
        files = dict(self.files)
        if SETUP in files:
            files[SETUP] = rename_paths(files[SETUP].decode("utf-8", "replace"), self.work.workdir).encode()
        return files


@dataclass(frozen=True, slots=True)
class _Part:
    """What is asked and judged at once: of a task, or of a step."""

    instruction: str
    solution: str
    tests: Mapping[str, bytes]
    test_modes: frozenset[str]

    def keeps(self, toml: TaskToml) -> bool:
        """Whether something is kept of what an agent leaves in `ARTIFACTS`."""
        return toml.verifier is not None or ARTIFACTS in self.instruction


def read_folder(
    path: str | Path, ignore_run: bool = False, engine_builds: Callable[[str], bool] = lambda image: False
) -> TaskFolder:
    """Read a task folder. Raises `ConfigError` naming what is missing or not supported.

    Without RUN lines, or with `ignore_run`, the WORKDIR and COPY lines of a Dockerfile say where its files lie.
    engine_builds: says of an image's name whether a container engine fetches it, and builds what starts from it.
    """
    path = Path(path)
    try:
        toml = path / "task.toml"
        said = read_toml(_own(toml, path)) if toml.exists() else {}
        settings, steps = read_task_toml(said, path), read_steps(said, path)
        context, modes = _read_files(path / "environment", path)
        parts = [_part(path, path / "steps" / step.name) for step in steps] or [_part(path, path)]
        given = [_read_files(path / "steps" / step.name / "workdir", path) for step in steps]
    except (OSError, ValueError) as error:
        raise ConfigError(f"terminal task {path}: {error}") from error
    maker = _Maker(path, ignore_run, engine_builds)
    if steps:
        # The limits of a session are for the longest tests.
        settings = replace(settings, said_timeout_s=max(step.toml.said_timeout_s for step in steps))
    first = parts[0]
    work = TaskFolder(path.name, first.instruction, {}, first.tests, first.solution, toml=settings)
    work = maker.made(Context(context, frozenset(modes)), work)
    if any(
        part.keeps(step.toml) for part, step in zip(parts, steps or (StepToml("", settings),), strict=True)
    ):
        work = replace(work, files={**work.files, KEEPER: b""})
    if not steps:
        return maker.judged(work, first, settings)
    made = []
    for step, part, (files, executable) in zip(steps, parts, given, strict=True):
        asked = replace(work, instruction=part.instruction, solution=part.solution)
        judged = maker.judged(asked, part, step.toml, step.name)
        made.append(TaskStep(step.name, judged, files, frozenset(executable), step.min_reward))
    return replace(work, steps=tuple(made), strategy=read_strategy(said, path))


def find_folders(path: str | Path) -> list[Path]:
    """Return the task folders below `path` by name. Raises `ConfigError` when there is none, and for a link to one
    elsewhere."""
    inside = Path(path)
    found = sorted(
        {p.parent for p in inside.glob("*/instruction.md")}
        | {p.parents[2] for p in inside.glob("*/steps/*/instruction.md")}
    )
    if not found:
        raise ConfigError(
            f"env.config.folder: {path}: holds no folder with an instruction.md, of a task or its steps"
        )
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


def _part(path: Path, folder: Path) -> _Part:
    """Return what a folder of a task at `path` asks: its own, or that of a step, which has the task's tests with its
    own over them, and the task's solution where it has none."""
    instruction = read_text(_own(folder / "instruction.md", path))
    solve = (folder if (folder / "solution").exists() else path) / "solution" / "solve.sh"
    solution = read_text(_own(solve, path)) if solve.exists() else ""
    tests, modes = _read_files(path / "tests", path)
    if folder != path:
        own, own_modes = _read_files(folder / "tests", path)
        tests, modes = tests | own, (modes - set(own)) | own_modes
    return _Part(instruction, solution, tests, frozenset(modes))


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


@dataclass(frozen=True, slots=True)
class _Maker:
    """Says what the environments of a task hold, and how their images are made."""

    path: Path
    ignore_run: bool
    engine_builds: Callable[[str], bool]

    def made(self, context: Context, task: TaskFolder) -> TaskFolder:
        """Return the task with the files of its environment, or the recipe of its image."""
        said, image = task.toml.workdir, task.toml.docker_image
        recipe = self._by_engine(context, image)
        by_engine = recipe is not None
        recipe = recipe or self._recipe(context, "environment/Dockerfile")
        if said:
            last = f"{recipe.engine_text}\nWORKDIR {said}\n" if by_engine else ""
            recipe = replace(recipe, workdir=said, engine_text=last)
        workdir = recipe.workdir if recipe.workdir != "/" else "/app"
        if by_engine or recipe.runs:
            return replace(
                task,
                image="" if by_engine else image,
                workdir=workdir,
                recipe=replace(recipe, workdir=workdir),
            )
        files, executable = self._files(context, recipe, workdir)
        return replace(task, image=image, workdir=workdir, files=files, executable=executable)

    def judged(self, work: TaskFolder, part: _Part, toml: TaskToml, step: str = "") -> TaskFolder:
        """Return the task with its tests, and with their environment where it is their own.

        step: the name of the step that they judge. Raises `ConfigError` where there are none.
        """
        tests = part.tests
        work = replace(work, tests=tests, toml=toml)
        own = toml.verifier
        if own is None:
            if "test.sh" not in tests and "test_outputs.py" not in tests:
                where = f"tests/ or steps/{step}/tests/" if step else "tests/"
                raise ConfigError(f"terminal task {self.path}: {where} must hold test.sh or test_outputs.py")
            return work
        if step and (own.docker_image or "Dockerfile" in tests):
            raise ConfigError(
                f"terminal task {self.path}: steps.{step}: tests in an image of their own, by tests/Dockerfile or "
                "verifier.environment.docker_image, are not followed in a task of steps; leave it out of "
                "env.config.folder"
            )
        return replace(work, verifier=self.verifier(work, Context(tests, part.test_modes), own))

    def verifier(self, work: TaskFolder, context: Context, toml: TaskToml) -> TaskFolder:
        """Return the environment of the tests: the image that it names, or that `tests/Dockerfile` makes, with the
        tests in it; or else one like the agent's.

        Raises `ConfigError` for artifacts that no session of the agent can hold.
        """
        for artifact in work.toml.artifacts:
            if artifact.place(work.workdir) is None:
                raise ConfigError(
                    f"terminal task {self.path}: task.toml: artifacts: {artifact.source!r} is neither in "
                    f"{work.workdir} nor in {ARTIFACTS}, and a session writes nowhere else"
                )
        name = f"{work.name} (verifier)"
        if toml.docker_image or "Dockerfile" in context.files:
            return self._own_image(
                replace(work, name=name, toml=toml, files={}, image="", recipe=None), context
            )
        if "test.sh" not in work.tests and "test_outputs.py" not in work.tests:
            raise ConfigError(
                f"terminal task {self.path}: tests/ must hold test.sh, test_outputs.py or a Dockerfile"
            )
        return replace(work, name=name, toml=toml, start=toml.workdir)

    def _own_image(self, work: TaskFolder, context: Context) -> TaskFolder:
        recipe = self._by_engine(context, work.toml.docker_image)
        if recipe is None and work.toml.docker_image:
            raise ConfigError(
                f"terminal task {self.path}: task.toml: verifier.environment.docker_image holds the tests; say in "
                f'env.config.bases that "podman" or "docker" fetches {work.toml.docker_image!r}'
            )
        by_engine = recipe is not None
        recipe = recipe or self._recipe(context, "tests/Dockerfile")
        start = work.toml.workdir or ("" if recipe.workdir == "/" else recipe.workdir)
        if not (by_engine or recipe.runs):
            files, executable, tests = self._files_and_tests(context, recipe, work.workdir)
            return replace(work, files=files, executable=executable, tests=tests, start=start)
        # What the agent left comes to the path that it had there.
        recipe = replace(
            recipe,
            workdir=work.workdir,
            steps=() if by_engine else (*recipe.steps, FolderStep(work.workdir)),
            engine_text=f"{recipe.engine_text}\nWORKDIR {work.workdir}\n" if by_engine else "",
        )
        return replace(work, recipe=recipe, tests={}, tests_in_image=True, start=start)

    def _recipe(self, context: Context, name: str) -> Recipe:
        """Return what the Dockerfile says; without one, that all files of the context lie in the work folder."""
        if "Dockerfile" not in context.files:
            return parse("WORKDIR /app\nCOPY . .", context)
        text = context.files["Dockerfile"].decode("utf-8", "replace")
        return parse(text, context, f"terminal task {self.path}: {name}", self.ignore_run)

    def _by_engine(self, context: Context, image: str) -> Recipe | None:
        """Return what a container engine makes of an environment: its image by name, as harbor prefers, or its
        Dockerfile; None where no engine does."""
        if self.ignore_run:
            return None
        text = context.files.get("Dockerfile", b"").decode("utf-8", "replace")
        if image and self.engine_builds(image):
            workdir = for_engine(text, context).workdir
            return replace(for_engine(f"FROM {image}\n", Context({})), workdir=workdir)
        recipe = for_engine(text, context)
        return recipe if recipe.base and self.engine_builds(recipe.base) else None

    def _files_and_tests(
        self, context: Context, recipe: Recipe, workdir: str
    ) -> tuple[dict[str, bytes], frozenset[str], dict[str, bytes]]:
        """Return the files of the work folder, which of them may be run, and those of `/tests`."""
        tests = {
            posixpath.relpath(target, TESTS): context.files[source]
            for target, source in _copies(recipe)
            if target.startswith(f"{TESTS}/")
        }
        if "test.sh" not in tests:
            raise ConfigError(f"terminal task {self.path}: tests/Dockerfile copies no test.sh to {TESTS}")
        steps = tuple(
            CopyStep(tuple(pair for pair in step.targets if not pair[0].startswith(f"{TESTS}/")))
            for step in recipe.steps
            if isinstance(step, CopyStep)
        )
        return *self._files(context, replace(recipe, steps=steps), workdir), tests

    def _files(
        self, context: Context, recipe: Recipe, workdir: str
    ) -> tuple[dict[str, bytes], frozenset[str]]:
        """Return the files of a work folder, and which of them may be run, where no image is built."""
        inside = {source: posixpath.relpath(target, workdir) for target, source in _copies(recipe)}
        outside = [source for source, target in inside.items() if target.startswith("..")]
        if outside:
            raise ConfigError(
                f"terminal task {self.path}: {outside[0]!r} is copied to a place outside of {workdir}"
            )
        files = {target: context.files[source] for source, target in inside.items()}
        return files, frozenset(target for source, target in inside.items() if source in context.executable)


def _copies(recipe: Recipe) -> list[tuple[str, str]]:
    """Return pairs of absolute path and path in the context."""
    return [pair for step in recipe.steps if isinstance(step, CopyStep) for pair in step.targets]


def rename_paths(text: str, workdir: str, tests: str = "", logs: str = "") -> str:
    """Return a text with Harbor's fixed paths (`workdir`, /tests, those of /logs) replaced by those of the sandbox."""
    for theirs, ours in (
        ("/logs/verifier", logs), (ARTIFACTS, f"{WORKDIR}/{KEPT}"), (TESTS, tests), (workdir.rstrip("/"), WORKDIR)
    ):  # fmt: skip
        if ours and theirs:
            text = _replace_path(text, theirs, ours)
    return text


def _replace_path(text: str, theirs: str, ours: str) -> str:
    """Replace a path that stands alone or is the start of a longer one: /app and /app/x, not /apple, /srv/app or
    /app.py."""
    return re.sub(rf"(?<![\w.\-/]){re.escape(theirs)}(?![\w\-]|\.\w)", ours, text)
