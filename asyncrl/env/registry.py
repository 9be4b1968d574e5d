"""Environments by name. A user's own is named by import path: `my_pkg.my_env:MyEnv` or `my_env.py:MyEnv`."""

from __future__ import annotations

import difflib
import logging
import re
from pathlib import Path
from typing import Any

from asyncrl.env.protocol import Env
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.import_path import FORMS, load_object
from asyncrl.types import Task

log = logging.getLogger("asyncrl.env")

ENVS: dict[str, str] = {
    "browser": "asyncrl.envs.browser.env:Browser",
    "calculator": "asyncrl.envs.calculator.env:Calculator",
    "code": "asyncrl.envs.code.env:Code",
    "dataset": "asyncrl.envs.dataset.env:Dataset",
    "countdown": "asyncrl.envs.countdown.env:Countdown",
    "countdown_several": "asyncrl.envs.countdown.several:SeveralCountdowns",
    "gridworld": "asyncrl.envs.gridworld.env:Gridworld",
    "mix": "asyncrl.envs.mix.env:Mix",
    "recorded": "asyncrl.envs.recorded.env:Recorded",
    "repair": "asyncrl.envs.repair.env:Repair",
    "search": "asyncrl.envs.search.env:Search",
    "simulated": "asyncrl.envs.simulated.env:Simulated",
    "sql": "asyncrl.envs.sql.env:Sql",
    "swe": "asyncrl.envs.swe.env:Swe",
    "team": "asyncrl.envs.team.env:Team",
    "terminal": "asyncrl.envs.terminal.env:Terminal",
    "threads": "asyncrl.envs.threads.env:Threads",
    "support": "asyncrl.envs.support.env:Support",
    "textgame": "asyncrl.envs.textgame.env:TextGame",
    "visual_gridworld": "asyncrl.envs.visual_gridworld.env:VisualGridworld",
    "math_tool": "asyncrl.envs.math_tool.env:MathTool",
    "nim": "asyncrl.envs.nim.env:Nim",
    "office": "asyncrl.envs.office.env:Office",
    **{row.name: row.path for row in rows("environments")},
}
"""The environments of `envs/`, and those that extensions add."""

ELSEWHERE: dict[str, str] = {row.name: row.tasks for row in rows("players")}
"""Names that only provide tasks: their episodes are played without an environment session."""


def names_inside(task: Task, config: dict[str, Any]) -> list[str]:
    """Return the environments that play `task` inside the one it names, outermost first; registered ones only.

    Wrong tasks and settings give none: opening the session reports what is wrong with them.
    """
    names: list[str] = []
    try:
        while task.env in ENVS and (inner := load_env(task.env).inner_task(task, **config)) is not None:
            task, config = inner
            names.append(task.env)
    except Exception as error:
        log.debug("task %s: what plays it is not known: %s", task.id, error)
    return names


def runs_in_worker(env_class: type[Env], config: dict[str, Any] | None = None) -> bool:
    """Return whether a class says of itself, not by inheritance, that its sessions may run in a rollout worker.

    config: settings of the environment, for one where that depends on them. Raises `ConfigError` for wrong ones.
    """
    asked = vars(env_class).get("in_worker_with")
    if asked is not None and config is not None:
        return bool(asked.__get__(None, env_class)(**config))
    return bool(vars(env_class).get("in_worker", False))


def load_env(name: str, setting: str = "env.name") -> type[Env]:
    """Return the environment class of a name or import path.

    Raises `ConfigError` naming the setting it came from and what is allowed.
    """
    path = (ENVS | ELSEWHERE).get(name, name)
    if ":" not in path:
        close = difflib.get_close_matches(name, ENVS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else _named_by_file(path)
        raise ConfigError(
            f"{setting}: unknown environment {name!r}; {hint}allowed: {', '.join(sorted(ENVS))}, "
            f"or an import path such as {FORMS}"
        )
    found = load_object(setting, path)
    if not (isinstance(found, type) and issubclass(found, Env)):
        raise ConfigError(f"{setting}: {name!r} is not a subclass of asyncrl.env.protocol.Env")
    return found


def load_played(name: str, setting: str) -> type[Env]:
    """As `load_env`, of an environment that another one plays inside. Raises `ConfigError` also for one whose episodes
    are played elsewhere."""
    if name in ELSEWHERE:
        raise ConfigError(
            f"{setting}: {name!r} has its episodes played by programs, and cannot be played inside another "
            f"environment; allowed: {', '.join(sorted(ENVS))}, or an import path such as {FORMS}"
        )
    return load_env(name, setting)


def _named_by_file(name: str) -> str:
    """Return how the class is named, where `name` is a file of the current folder."""
    file = Path(name if name.endswith(".py") else f"{name}.py")
    if not file.is_file():
        return ""
    found = re.findall(r"^\ufeff?class (\w+)", file.read_text(errors="replace"), re.MULTILINE)
    return f"name its class, too, such as {file.stem}:{found[0] if found else 'MyEnv'}; "
