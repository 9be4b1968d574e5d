"""Checks whether an environment accepts a recipe's settings, before anything starts.

Names and types are read from the signatures of its constructor and of `tasks`. Anything else it refuses shows when an
instance is made for the first task, and closed again without being opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import json
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import pydantic

from asyncrl.agent_time import SHARE
from asyncrl.config import Config
from asyncrl.env.hosting.calls import EnvCalls
from asyncrl.env.hosting.runtime import CLOSE_TIMEOUT_S, RESET_TIMEOUT_S
from asyncrl.env.protocol import Env, least_step_s_of
from asyncrl.env.registry import ELSEWHERE, load_env, runs_in_worker
from asyncrl.errors import ConfigError, EpisodeError, InputError
from asyncrl.extensions.table import by_name
from asyncrl.sandbox.backends import choose
from asyncrl.types import Task

GIVEN = ("self", "task", "cls", "split", "env")
"""Parameters that are not settings."""


def check_settings(name: str, config: Mapping[str, Any], where: str = "env.config") -> None:
    """Check the names and types of an environment's settings, and of those it passes on to others.

    Raises `ConfigError` naming the key, the value and what is allowed, also for an unknown environment.
    """
    env_class = load_env(name)
    for function, what in (
        (env_class.__init__, f"environment {name!r}"),
        (env_class.tasks, f"{name!r}.tasks"),
    ):
        parameters = _parameters(function)
        takes = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        for key in config:
            if key not in takes and len(takes) == len(parameters):
                raise ConfigError(f"{where}.{key}: {what} has no such setting{_hint(key, takes)}")
        for parameter in parameters:
            required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
            if required and parameter.name not in config:
                raise ConfigError(f"{where}.{parameter.name}: missing; {what} needs it")
    _check_types(env_class.__init__, config, where)
    for inner_where, inner_name, inner_config in _inner(env_class, config, where):
        check_settings(inner_name, inner_config, inner_where)


def env_services(config: Config) -> int:
    """Return how many environment services a run starts with: `env.services`, with "auto" decided.

    Raises `ConfigError` for an environment that is not found.
    """
    env, limits = config.env, config.numbers
    if env.services != "auto":
        return env.services
    if env.processes or env.secrets or "env" in limits:
        return limits.get("env", (1, 1))[0]
    return 0 if runs_in_worker(load_env(env.name), env.config) else 1


def check_place(name: str, services: int | Literal["auto"], config: dict[str, Any] | None = None) -> None:
    """Check that an environment may run where `env.services` puts it. Raises `ConfigError`."""
    if services == 0 and not runs_in_worker(load_env(name), config):
        raise ConfigError(
            f"env.services: 0 runs sessions in the rollout workers, which environment {name!r} does not allow "
            "(`in_worker`); allowed: at least 1"
        )


def provided(name: str, config: Mapping[str, Any], where: str = "env.config") -> frozenset[str]:
    """Return what an environment's steps give, by its class; of one that plays others, what all of these give."""
    env_class = load_env(name)
    if name in ELSEWHERE:
        return frozenset(by_name("players")[name].provides)
    inner = list(_inner(env_class, config, where))
    if not inner:
        return env_class.provides
    return frozenset.intersection(*(provided(one, settings, place) for place, one, settings in inner))


def check_provided(name: str, config: Mapping[str, Any], needed: Mapping[str, str]) -> None:
    """Refuse an environment that lacks what an objective reads.

    needed: words of `Env.provides`, each with the key and value that asks for it. Raises `ConfigError`.
    """
    given = provided(name, config)
    for word, key in needed.items():
        if word not in given:
            raise ConfigError(
                f"env.name: {name!r} gives no {word} (`Step.{word}`), which {key} learns from; choose an environment "
                f'that does, or, if this one gives them, say so in its class: `provides = frozenset({{"{word}"}})`'
            )


def check_environment(
    name: str,
    config: Mapping[str, Any],
    task: Task,
    where: str = "env.config",
    fails: bool = False,
    step_timeout_s: float | None = None,
) -> bool:
    """Make an environment for `task` and close it; return whether it, or one inside it, offers tools.

    Raises `ConfigError` if it refuses its settings, or allows what the agent starts more time than a step of
    `step_timeout_s` has for it; None lets a step have what it needs.

    fails: raise `EpisodeError`, too, where its constructor fails.

    Settings it passes on are tried on the first training task of each environment. Other exceptions of a constructor
    are environment failures like any other. Raises `DeadlineError` if it takes longer than a session may.
    """
    env_class = load_env(name)
    inner = list(_inner(env_class, config, where))
    offered = False
    for inner_where, inner_name, inner_config in inner:
        first = first_task(inner_name, inner_config, "train", inner_where)
        inside = check_environment(
            inner_name, inner_config, first, inner_where, step_timeout_s=step_timeout_s
        )
        offered = inside or offered
    if inner or name in ELSEWHERE:
        return offered
    backend = dict({p.name: p.default for p in _parameters(env_class.__init__)}, **config).get("sandbox")
    try:
        offers_tools, least_s = asyncio.run(_make(env_class, name, dict(config), task, backend))
    except InputError as error:
        raise ConfigError(f"{error} (tried on task {task.id!r})") from error
    except EpisodeError:
        if fails:
            raise
        return bool(env_class.tools)
    if step_timeout_s is not None and least_s > step_timeout_s:
        raise ConfigError(
            f"env.step_timeout_s: must be at least {math.ceil(least_s)} with the time limits of {name!r} ({where}, or "
            f"what task {task.id!r} says), got {step_timeout_s:g}; what the agent starts in a step gets "
            f"{SHARE:.0%} of it. Raise it, lower the limits, or leave it out"
        )
    return offers_tools


def first_task(name: str, config: Mapping[str, Any], split: str, where: str = "env.config") -> Task:
    """Return the first task of a split. Raises `ConfigError` if there is none, or if the task list refuses its
    settings."""
    try:
        found = next(islice(load_env(name).tasks(split, name, **config), 1), None)
    except (TypeError, ValueError, OSError, InputError) as error:
        raise ConfigError(f"{where}: the task list of {name!r} refuses {dict(config)!r}: {error}") from error
    if found is None:
        raise ConfigError(f"{where}: {name!r} has no task in its {split!r} split")
    return found


async def _make(
    env_class: type[Env], name: str, config: dict[str, Any], task: Task, backend: Any
) -> tuple[bool, float]:
    """Return whether the environment offers tools, and the least limit of a step that it needs, in seconds."""
    if isinstance(backend, str):
        # Environments that run code have a setting of this name for their sandbox.
        await choose(backend)
    calls = EnvCalls(env_class, name, lambda change: None)
    try:
        await calls.construct(task, config, RESET_TIMEOUT_S)
        return bool(calls.env.tools), least_step_s_of(calls.env)
    finally:
        with contextlib.suppress(Exception):
            await calls.close(CLOSE_TIMEOUT_S)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the settings a function accepts; `**kwargs` stands for any."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [inspect.Parameter("config", inspect.Parameter.VAR_KEYWORD)]
    return [p for p in found if p.name not in GIVEN and p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)]


def _check_types(function: Callable[..., Any], config: Mapping[str, Any], where: str) -> None:
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        # Annotations may use names that exist for type checkers only.
        return
    for key, value in config.items():
        try:
            adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hints.get(key, Any))
            text = json.dumps(value)
        except (pydantic.errors.PydanticUserError, TypeError, ValueError):
            continue
        try:
            # As for JSON, where a list may stand for a tuple and a text for a path.
            adapter.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            problem = error.errors()[0]
            at = ".".join([where, key, *(str(part) for part in problem["loc"] if isinstance(part, int))])
            message = problem["msg"]
            raise ConfigError(f"{at}: {message[0].lower()}{message[1:]}, got {text}") from None


def _inner(
    env_class: type[Env], config: Mapping[str, Any], where: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield location, name and settings of the environments that this one plays."""
    inner = getattr(env_class, "inner", None)
    if inner is not None:
        for key, name, settings in inner(**config):
            yield f"{where}.{key}", name, settings


def _hint(key: str, takes: set[str]) -> str:
    close = difflib.get_close_matches(key, takes, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} allowed: {', '.join(sorted(takes)) or 'none'}"
