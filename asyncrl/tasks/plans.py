"""How a run's tasks come into the buffer: as an extension plans them, or one after the other."""

from __future__ import annotations

from typing import Protocol

from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.services.buffer.client import BufferClient
from asyncrl.tasks.tasks import planned_in_order


class Plan(Protocol):
    """The tasks of a run."""

    async def feed(self, client: BufferClient) -> None:
        """Give the buffer what it needs by now. Called again and again."""


def plan_tasks(config: Config) -> Plan:
    """Return the run's tasks, from rows, the task file or the environment. Raises `ConfigError`, `InputError`."""
    for row in rows("task_plans"):
        if row.wanted(config):
            planned: Plan = row.load()(config)
            return planned
    return planned_in_order(config)
