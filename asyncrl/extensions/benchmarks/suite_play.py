"""Plays the tasks of a suite with a checkpoint, and goes on with what an earlier evaluation has left.

Environments, engine and worker are those of a run. They are supervised: one that dies is started again, and what it
was playing is played again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from asyncrl import __version__
from asyncrl.config import Config, apply_override, parse_config
from asyncrl.credentials import authorization
from asyncrl.data.codec import task_to_map
from asyncrl.env.config_check import check_environment
from asyncrl.env.parts import in_part
from asyncrl.env.registry import load_env
from asyncrl.errors import ConfigError, EpisodeError, InputError
from asyncrl.extensions.benchmarks.samples import (
    RECORD,
    SampleFile,
    add_checkpoint,
    missing_tasks,
    read_record,
    sample_rows,
)
from asyncrl.extensions.benchmarks.suite import MIX, Suite, SuitePart
from asyncrl.extensions.table import rows
from asyncrl.import_path import search_in
from asyncrl.jsonfile import write_json
from asyncrl.launch.checks.check import check_engine, check_model, check_turn_format
from asyncrl.launch.evaluation.evaluate import UNLIMITED, call_until_answered, start_player, task_timeout_s
from asyncrl.launch.models.local_models import load_recipe
from asyncrl.launch.processes.health_probes import EngineProbe, HttpProbe
from asyncrl.launch.processes.process_group import ManagedProcess, ProcessGroup
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.patience import Patience
from asyncrl.rollout.elsewhere import PROGRAMS, played_elsewhere
from asyncrl.run.model_folder import context_length, fingerprint
from asyncrl.tls import client_context
from asyncrl.together import together
from asyncrl.types import Task

FIXED = (
    "env.name",
    "env.config",
    "eval.temperature",
    "eval.most_thinking",
    "eval.least_thinking",
    "run.seed",
    "rollout.max_turns",
    "rollout.max_tokens_per_turn",
    "engine.max_model_len",
)
"""Keys that a suite decides."""
SETTINGS = ("model", "rollout", *(row.name for row in rows("settings") if row.of_episodes))
"""Further sections that decide what comes of an episode."""


def suite_config(suite: Suite, checkpoint: str, recipe: str | None, overrides: Sequence[str]) -> Config:
    """Return the configuration of an evaluation's first sitting.

    Raises `ConfigError`, also for an override of what the suite fixes.
    """
    for override in overrides:
        key = override.partition("=")[0]
        if any(key == fixed or key.startswith(f"{fixed}.") for fixed in FIXED):
            raise ConfigError(f"override {override!r}: the suite {suite.name!r} fixes {key}")
    context = context_length(checkpoint) or suite.max_model_len
    name, settings, _ = next(suite.sittings())
    fixed: dict[str, Any] = {
        "model.path": checkpoint,
        "env.name": name,
        "env.config": settings,
        "eval.temperature": suite.temperature,
        "eval.most_thinking": suite.most_thinking,
        "eval.least_thinking": suite.least_thinking,
        "run.seed": suite.seed,
        "rollout.max_turns": suite.max_turns,
        "rollout.max_tokens_per_turn": min(suite.max_tokens_per_turn, context - 1),
        "engine.max_model_len": min(suite.max_model_len, context),
    }
    data: dict[str, Any] = {"run": {"python_path": [str(Path.cwd())]}}
    if recipe:
        data = load_recipe(recipe, [f"model.path={json.dumps(checkpoint)}"]).model_dump(mode="json")
    for override in overrides:
        apply_override(data, override)
    for key, value in fixed.items():
        section, name = key.split(".")
        data.setdefault(section, {})[name] = value
    # The parts may be any environments, which rollout workers do not run.
    data["env"]["services"] = max(1, data["env"].get("services", 1))
    config = parse_config(data, f"suite {suite.name!r}", strict=False)
    search_in(config.run.python_path)
    return config


def check_suite(suite: Suite, tasks: Mapping[str, Sequence[Task]], configs: Mapping[str, Config]) -> None:
    """Check what can be known before a suite is played. Raises `ConfigError`."""
    offers_tools = False
    for name, part in suite.parts.items():
        _check_tasks(name, part, tasks[name])
        if part.harness:
            continue
        step_timeout_s = min(
            (c.env.given_step_s for c in configs.values() if c.env.given_step_s is not None), default=None
        )
        first, where = tasks[name][0], f"parts.{name}.config"
        tools = check_environment(part.env, part.config, first, where, step_timeout_s=step_timeout_s)
        offers_tools = tools or offers_tools
    _check_programs(suite, tasks, configs)
    for checkpoint, config in configs.items():
        check_model("checkpoint", checkpoint, config)
        check_turn_format(config, offers_tools)
        check_engine(config)


def _check_programs(suite: Suite, tasks: Mapping[str, Sequence[Task]], configs: Mapping[str, Config]) -> None:
    """Have the programs of harnesses installed, and their tasks read. Raises `ConfigError`, `UnavailableError`."""
    for env, settings, names in suite.sittings():
        if (elsewhere := played_elsewhere(env)) is None:
            continue
        (name,) = names
        for config in configs.values():
            try:
                timeout_s = config.rollout.episode_timeout_s
                elsewhere.check(settings, _wrapped(suite, name, tasks[name][0]), timeout_s)
            except ConfigError as error:
                raise ConfigError(f"parts.{name}: {error}") from error


def _wrapped(suite: Suite, name: str, task: Task) -> Task:
    """Return a part's task as the environment of its sitting gets it."""
    if suite.parts[name].harness:
        return dataclasses.replace(task, id=in_part(name, task).id, env=PROGRAMS)
    return in_part(name, task, MIX)


def _check_tasks(name: str, part: SuitePart, tasks: Sequence[Task]) -> None:
    """Have the environment refuse tasks that it cannot judge here, where it knows. Raises `ConfigError`."""
    check = getattr(load_env(part.env), "check_tasks", None)
    if check is not None:
        try:
            check(tasks, **part.config)
        except (InputError, EpisodeError) as error:
            raise ConfigError(f"parts.{name}: {error}") from error


def open_evaluation(
    folder: Path, suite: Suite, tasks: Mapping[str, Sequence[Task]], configs: Mapping[str, Config]
) -> list[str]:
    """Make the folder of an evaluation, or find that it holds one of the same suite, tasks, checkpoints and settings.

    configs: by checkpoint. Checkpoints may be added to a folder. Returns all of them, the oldest first. Raises
    `ConfigError` naming what differs.
    """
    listed = {
        name: [[task.id, task.seed, task.split, task.data] for task in tasks[name]] for name in suite.parts
    }
    now = {"suite": json.loads(suite.model_dump_json()), "tasks": json.loads(json.dumps(listed, default=str))}
    before = read_record(folder, now["suite"])
    if before is not None and now["tasks"] != before["tasks"]:
        raise ConfigError(f"--out {folder}: holds an evaluation on other tasks; give another folder")
    known: dict[str, Any] = before["checkpoints"] if before else {}
    for checkpoint, config in configs.items():
        settings = {name: getattr(config, name).model_dump(mode="json") for name in SETTINGS}
        add_checkpoint(folder, known, checkpoint, {"files": fingerprint(checkpoint), **settings})
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, {"asyncrl": __version__, **now, "checkpoints": known})
    return list(known)


def play_suite(
    suite: Suite,
    tasks: Mapping[str, Sequence[Task]],
    checkpoint: str,
    config: Config,
    folder: Path,
    file: SampleFile,
    progress: Callable[[], None],
) -> None:
    """Play what is missing of a checkpoint's samples and add it to `file`, task by task.

    folder: of processes and logs. progress: called after each task. Raises `UnavailableError`, `DeadlineError`,
    `InfrastructureError`.
    """
    for env, settings, names in suite.sittings():
        own = {_wrapped(suite, name, task).id: (name, task) for name in names for task in tasks[name]}
        wrapped = [_wrapped(suite, name, task) for name, task in own.values()]
        if missing := missing_tasks(file, checkpoint, wrapped, suite.samples):
            sitting = config.env.model_copy(update={"name": env, "config": settings})
            place = folder / names[0] if env == PROGRAMS else folder
            played = config.model_copy(update={"env": sitting})
            _play(suite, own, missing, checkpoint, played, place, file, progress)


def _play(
    suite: Suite,
    own: Mapping[str, tuple[str, Task]],
    missing: Sequence[Task],
    checkpoint: str,
    config: Config,
    folder: Path,
    file: SampleFile,
    progress: Callable[[], None],
) -> None:
    """Play tasks of one sitting. own: part and its own task by the id of the one that is played."""
    with _player(config, folder, checkpoint, lambda: len(file.rows)) as (worker, supervisor, token):
        patience = Patience(task_timeout_s(config))

        async def play_one(http: aiohttp.ClientSession, at_once: asyncio.Semaphore, task: Task) -> None:
            request = {
                "tasks": [task_to_map(task)],
                "samples": suite.samples,
                "temperature": suite.temperature,
                "seed": suite.seed,
            }
            async with at_once:
                group = await call_until_answered(
                    http, worker.url, request, config.outage_timeout_s, patience
                )
            file.append(sample_rows(group, checkpoint, suite, *own[task.id]))
            progress()

        async def play_all() -> None:
            headers = {"Content-Type": "application/msgpack"} | authorization(token)
            at_once = asyncio.Semaphore(
                max(1, config.engine.max_num_seqs * config.engine.count // suite.samples)
            )
            connector = aiohttp.TCPConnector(limit=0, ssl=client_context() or True)
            async with aiohttp.ClientSession(headers=headers, timeout=UNLIMITED, connector=connector) as http:
                await together(play_one(http, at_once, task) for task in missing)

        asyncio.run(supervisor.run(play_all()))


@contextmanager
def _player(
    config: Config, folder: Path, checkpoint: str, played: Callable[[], int]
) -> Iterator[tuple[ManagedProcess, Supervisor, str]]:
    """Serve a rollout worker with its engine and environments; all end with the block."""
    process_group = ProcessGroup(folder)
    (folder / "config.json").write_text(config.model_dump_json())
    try:
        services, engine, worker = start_player(process_group, config, folder, checkpoint)
        credentials, start_s = process_group.credentials, config.run.start_timeout_s
        supervisor = Supervisor(
            process_group, folder / "restarts.jsonl", config.run.silence_timeout_s, progress=played
        )
        supervisor.watch(engine, EngineProbe(engine, credentials.bearer("engine")), start_s)
        for process in (*services, worker):
            supervisor.watch(process, HttpProbe(process, "/healthz"), start_s)
        yield worker, supervisor, credentials.bearer("rollout")
    finally:
        process_group.stop()
