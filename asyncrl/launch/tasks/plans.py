"""How a run's tasks come into the buffer: a table, in which the first plan that is asked for is the run's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from asyncrl.algo.curation.curricula import FILE_ORDER
from asyncrl.config import Config
from asyncrl.import_path import load_object
from asyncrl.services.buffer.client import BufferClient


class Plan(Protocol):
    """The tasks of a run."""

    async def feed(self, client: BufferClient) -> None:
        """Give the buffer what it needs by now. Called again and again."""


class Row(NamedTuple):
    """One kind of plan."""

    asked: Callable[[Config], bool]
    make: str
    """The import path of what makes it of a configuration."""


PLANS = (
    Row(lambda config: config.curriculum.name != FILE_ORDER, "asyncrl.launch.tasks.task_pool:plan_pool"),
    Row(lambda config: True, "asyncrl.launch.tasks.tasks:planned_in_order"),
)


def plan_tasks(config: Config) -> Plan:
    """Return the run's tasks, from rows, the task file or the environment. Raises `ConfigError`, `InputError`."""
    make = next(row.make for row in PLANS if row.asked(config))
    plan: Plan = load_object("tasks", make)(config)
    return plan
