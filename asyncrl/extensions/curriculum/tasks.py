"""The tasks that a curriculum chooses among: all are given to the buffer at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.curriculum.conflicts import check_curriculum
from asyncrl.extensions.curriculum.settings import MAX_POOL, CurriculumConfig
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.buffer.hook_client import add_pool
from asyncrl.tasks.data_rows import has_rows, rows_of
from asyncrl.tasks.shares import own_share
from asyncrl.tasks.tasks import tasks_of
from asyncrl.types import Task


class PoolPlan:
    """Gives the buffer's curriculum the tasks it chooses among. A repeat after a crash changes nothing."""

    def __init__(self, tasks: Sequence[Task], total: int) -> None:
        self.tasks = tasks
        self._total = total
        self._given = False

    async def feed(self, client: BufferClient) -> None:
        """Give the tasks, once."""
        if not self._given:
            await add_pool(client, self.tasks, self._total)
            self._given = True


def plan_pool(config: Config) -> PoolPlan:
    """Return the pool of a run as its plan. Raises `ConfigError`, `InputError`."""
    return PoolPlan(pool_of(config), config.env.num_tasks)


def pool_of(config: Config) -> list[Task]:
    """Return the tasks that the run's curriculum chooses among. Raises `ConfigError`, `InputError`."""
    listed: Iterable[Task]
    if has_rows(config):
        rows = rows_of(config)
        _check_pool("data.train", rows.size("train"), "lower data.limit")
        listed = rows.epoch(0, config.env.name)
    elif config.env.task_file:
        listed = list(tasks_of(config, "train"))
        _check_pool("env.task_file", len(listed), "shorten the file")
    else:
        listed = islice(tasks_of(config, "train"), config.section(CurriculumConfig).pool)
    return list(own_share(listed, config))


def check_pool(config: Config, alone: bool) -> None:
    """Check that the run's curriculum can choose among its tasks. Raises `ConfigError` and `InputError`."""
    make = check_curriculum(config)
    assert make is not None
    make(pool_of(config))


def _check_pool(key: str, size: int, advice: str) -> None:
    if size > MAX_POOL:
        raise ConfigError(f"{key}: a curriculum chooses among at most {MAX_POOL} tasks, got {size}; {advice}")
