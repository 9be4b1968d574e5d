"""A suite: environments frozen by version, configuration and seeds, on which checkpoints are compared.

It is a TOML file. A name finds one in `suites/` of the current folder, else one of the package.

    version = 1
    samples = 4                     # episodes of each task

    [parts.walk]
    env = "gridworld"
    tasks = 50                      # the first ones of the held-out split
    tags = ["navigation"]
    digest = "0f3a..."              # of the tasks as they were when the suite was made

    [parts.words]
    set = "gsm8k"                   # a known data set, from the hub, or from `file`

    [parts.repairs]
    harness = "mini-swe-agent"      # an agent program does the tasks of `env`
    env = "repair"
    tasks = 10
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from asyncrl.config import expanded
from asyncrl.config_sections import DataConfig, DataSource, Section
from asyncrl.env.config_check import check_settings
from asyncrl.env.registry import ELSEWHERE, load_env
from asyncrl.env.tasks import read_task_file
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.benchmarks.importers.records import import_tasks, importer, reader_of
from asyncrl.rewards.golds import gold_check
from asyncrl.rollout.elsewhere import PROGRAMS
from asyncrl.rows.data import open_data
from asyncrl.rows.known_sets import known_set, known_sets
from asyncrl.rows.settings import with_data
from asyncrl.textfile import read_toml
from asyncrl.types import Task

PACKAGED = Path(__file__).parent / "suites"
MIX = "mix"
"""The environment that plays several parts at once."""
LOCAL = Path("suites")
"""Below the current folder; goes before those of the package."""
OPENED = 2
"""Tasks of a part whose opening messages enter its digest."""
DIGEST_CHARS = 16
PROMPT_TOKENS = 3072
"""Context that `--on` leaves for the question."""

Name = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]


class SuitePart(Section):
    """One environment of a suite, with its settings and tasks."""

    env: str = ""
    """Its name or import path; that of the format where `format` names one."""
    tasks: int = Field(0, ge=0)
    """How many tasks, the first ones of the split or file; 0 takes all of a file or data set."""
    split: Literal["train", "heldout"] = "heldout"
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the environment."""
    harness: str = ""
    """An agent program that does the environment's tasks: its name, or a TOML file relative to the suite's folder
    (docs/harnesses.md)."""
    file: str = ""
    """File of tasks instead of the environment's own, relative to the suite's folder: as `env.task_file`, or in
    `format`."""
    format: str = ""
    """Benchmark whose fields the file has: math, humaneval, mbpp, livecodebench, bfcl, bfcl_multi_turn,
    ifeval (docs/evaluation.md)."""
    set: str = ""
    """Known data set (docs/data.md) whose prompt, columns and reward hold for `file`; its held-out rows are those of
    the hub without one."""
    tags: list[str] = Field(default_factory=list)
    """What results are broken down by, beside the tags in `task.data["tags"]`."""
    difficulty: str | int | None = None
    """The same, for tasks whose data names neither `difficulty` nor `level`."""
    digest: str = ""
    """The digest of its tasks, their settings and the first openings. A wrong one is refused with the right one."""

    @model_validator(mode="after")
    def _bounded(self) -> SuitePart:
        if not self.tasks and not self.file and not self.set:
            raise ValueError("tasks: must be above 0 without a file, whose tasks end")
        if sum(map(bool, (self.env, self.format, self.set))) != 1:
            raise ValueError(
                "env: give the environment, or the format of a file, or the known data set, whose environment is known"
            )
        if self.harness and not self.env:
            raise ValueError(
                "env: missing; harness needs an environment whose tasks are folders, such as terminal"
            )
        if self.format and not self.file:
            raise ValueError("file: missing; format says how a file is read")
        return self


class Suite(Section):
    """What is fixed in a suite."""

    name: Name
    version: int = Field(ge=1)
    """Raise it with every change: results of different versions are not comparable."""
    description: str = ""
    samples: int = Field(1, ge=1, le=1024)
    """Episodes of each task; pass@k and pass^k are estimated up to this k."""
    temperature: float = Field(1.0, ge=0)
    seed: int = Field(0, ge=0)
    """The seed of the sampling."""
    max_turns: int = Field(0, ge=0)
    """Turns of an episode; 0 takes each environment's own limit."""
    max_tokens_per_turn: int = Field(256, ge=1)
    most_thinking: int | None = Field(None, ge=0)
    """Tokens after which thinking is ended and the answer begins; left out, it ends by itself."""
    least_thinking: int | None = Field(None, ge=1)
    """Tokens before which thinking goes on, with "Wait" in place of its end."""
    max_model_len: int = Field(2048, ge=16)
    """Tokens of an episode, or the checkpoint's own context where that is shorter."""
    parts: dict[Name, SuitePart] = Field(min_length=1)

    @model_validator(mode="after")
    def _sampled_by_us(self) -> Suite:
        bounded = self.most_thinking is not None or self.least_thinking is not None
        if bounded and any(part.harness for part in self.parts.values()):
            raise ValueError(
                "most_thinking and least_thinking: must be left out with a harness, whose program samples"
            )
        return self

    def sittings(self) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
        """Yield environment, its settings and the parts that are played at once: those without an agent program in a
        mix, each of the others by its program."""
        mixed = {name: part for name, part in self.parts.items() if not part.harness}
        if mixed:
            parts = {name: {"env": part.env, "config": part.config} for name, part in mixed.items()}
            yield MIX, {"parts": parts}, list(mixed)
        for name, part in self.parts.items():
            if part.harness:
                settings = {"harness": part.harness, "tasks": part.env, "task_config": part.config}
                yield PROGRAMS, settings, [name]


def known_suites() -> dict[str, Path]:
    """Return the files of the suites that a name alone finds."""
    found: dict[str, Path] = {}
    for folder in (LOCAL, PACKAGED):
        for path in folder.glob("*.toml"):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def load_suite(given: str) -> Suite:
    """Read a suite by name or file. Raises `ConfigError` naming the key, the value and what is allowed."""
    known = known_suites()
    path = Path(given)
    if not path.is_file():
        if given not in known:
            close = difflib.get_close_matches(given, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise ConfigError(f"no suite {given!r}{hint} Suites: {', '.join(known)}; or give a TOML file")
        path = known[given]
    try:
        data = read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        suite = Suite.model_validate({"name": path.stem} | data)
    except ValidationError as error:
        problems = "\n".join(
            f"  {'.'.join(map(str, one['loc'])) or 'suite'}: {one['msg']}, got {str(one['input'])[:100]!r}"
            for one in error.errors()
        )
        raise ConfigError(f"{path}: {error.error_count()} problem(s):\n{problems}") from None
    return _complete(suite, f"{path}: parts.", path.parent)


def suite_on(
    sets: Mapping[str, str],
    limit: int,
    samples: int,
    max_tokens: int,
    temperature: float = 1.0,
    thinking: tuple[int | None, int | None] = (None, None),
) -> Suite:
    """Return the suite of `asyncrl eval --on`: known data sets, each with its file or "" for the hub.

    limit: tasks of each, 0 for all. max_tokens: of an answer. thinking: the most and the least tokens of it.
    Raises `ConfigError` for an unknown set.
    """
    for name in sets:
        known_set(name, "--on")
    suite = Suite(
        name="_".join(sets)[:100],
        version=1,
        samples=samples,
        temperature=temperature,
        max_tokens_per_turn=max_tokens,
        most_thinking=thinking[0],
        least_thinking=thinking[1],
        max_model_len=max_tokens + PROMPT_TOKENS,
        parts={name: SuitePart(set=name, file=file, tasks=limit) for name, file in sets.items()},
    )
    return _complete(suite, "--on ", Path.cwd())


def _complete(suite: Suite, where: str, folder: Path) -> Suite:
    """Return a suite whose parts have their environments, and files below `folder`. Raises `ConfigError`."""
    parts = {name: _found(part, f"{where}{name}", folder) for name, part in suite.parts.items()}
    return suite.model_copy(update={"parts": parts})


def _found(part: SuitePart, where: str, folder: Path) -> SuitePart:
    """Return a part with its environment and settings known and its file absolute. Raises `ConfigError`."""
    file = str((folder / expanded(f"{where}.file", part.file)).absolute()) if part.file else ""
    part = part.model_copy(update={"file": file})
    if part.set:
        return part.model_copy(update=_environment_of(part, where))
    env = part.env or importer(part.format, f"{where}.format").ENV
    load_env(env, f"{where}.env")
    if env in ELSEWHERE:
        raise ConfigError(
            f"{where}.env: {env!r} plays its own episodes; name the environment whose tasks it gets, and the program "
            "in harness"
        )
    check_settings(env, part.config, f"{where}.config")
    return part.model_copy(update={"env": env, "harness": _harness(part.harness, f"{where}.harness", folder)})


def _harness(given: str, where: str, folder: Path) -> str:
    """Return a harness by its name, or the whole path of its file. Raises `ConfigError`."""
    return str((folder / expanded(where, given)).absolute()) if given.endswith(".toml") else given


def _environment_of(part: SuitePart, where: str) -> dict[str, Any]:
    """Return the environment that plays a known set, and its settings. Raises `ConfigError`."""
    known = known_set(part.set, f"{where}.set")
    if known is None:
        raise ConfigError(f"{where}.set: names no data set, got {part.set!r}")
    if not part.file and known.source("heldout") is None:
        raise ConfigError(f"{where}: {part.set!r} has no held-out rows on the hub; name its file")
    try:
        env = with_data({"data": _rows(part).model_dump(exclude_defaults=True)})["env"]
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    load_env(env["name"], f"{where}.set")
    return {"env": env["name"], "config": {**env.get("config", {}), **part.config}}


def _rows(part: SuitePart) -> DataConfig:
    """Return the settings that read a part's known set: its rows in their own order, none of them held out."""
    known = known_sets()[part.set]
    source = DataSource(path=part.file) if part.file else known.source("heldout")
    return DataConfig(set=part.set, train=source or "", heldout_share=0.0, shuffle=False)


def part_tasks(name: str, part: SuitePart) -> list[Task]:
    """Return a part's tasks, as its environment knows them. Raises `ConfigError`, `InputError`."""
    where = f"parts.{name}"
    try:
        if part.set:
            rows = open_data(_rows(part), "", reader_of, gold_check).epoch(0, part.env)
            listed = [dataclasses.replace(task, split="heldout") for task in islice(rows, part.tasks or None)]
        elif part.format:
            listed = import_tasks(part.format, part.file)
        elif part.file:
            listed = read_task_file(part.file, part.env)
        else:
            listed = list(islice(load_env(part.env).tasks(part.split, part.env, **part.config), part.tasks))
    except (TypeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise ConfigError(f"{where}: the task list of {part.env!r} fails: {error}") from error
    chosen = listed[: part.tasks or None]
    if not chosen or (len(chosen) < part.tasks and not part.set):
        raise ConfigError(f"{where}.tasks: {part.tasks} asked for, and there are {len(chosen)}")
    return chosen


def part_digest(part: SuitePart, tasks: Sequence[Task]) -> str:
    """Return the digest of a part's tasks, settings and first openings. Raises what the environment raises."""
    openings = asyncio.run(_openings(part, tasks[:OPENED]))
    listed = [[task.id, task.seed, task.split, task.data] for task in tasks]
    text = json.dumps([part.env, part.config, listed, openings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def check_digests(suite: Suite, tasks: Mapping[str, Sequence[Task]]) -> None:
    """Raise `ConfigError` where a part's tasks are not those that the suite was made with."""
    wrong = [
        f"parts.{name}: digest {found}, the suite was made with {part.digest!r}"
        for name, part in suite.parts.items()
        if part.digest and (found := part_digest(part, tasks[name])) != part.digest
    ]
    if wrong:
        raise ConfigError(
            f"suite {suite.name!r} version {suite.version}: tasks are not those it was made with: {'; '.join(wrong)}. "
            "Results would not be comparable: give these tasks a suite of another version, with the new digests"
        )


async def _openings(part: SuitePart, tasks: Sequence[Task]) -> list[Any]:
    found = []
    for task in tasks:
        env = load_env(part.env)(task, **part.config)
        try:
            opened = env.reset()
            found.append(await opened if inspect.isawaitable(opened) else opened)
        finally:
            closing = env.close()
            if inspect.isawaitable(closing):
                await closing
    return found
