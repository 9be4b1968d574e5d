"""The tasks that a curriculum chooses among: all are given to the buffer at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from asyncrl.config import Config
from asyncrl.data.codec import task_to_map
from asyncrl.errors import ConfigError
from asyncrl.extensions.curriculum.conflicts import check_curriculum
from asyncrl.extensions.curriculum.settings import MAX_POOL, CurriculumConfig
from asyncrl.extensions.replay.success_file import KEY, recorded_problems
from asyncrl.extensions.replay.success_pool import problem
from asyncrl.services.buffer.client import BufferClient
from asyncrl.tasks.data_rows import has_rows, rows_of
from asyncrl.tasks.shares import own_share
from asyncrl.tasks.tasks import tasks_of
from asyncrl.types import Task


async def add_pool(
    client: BufferClient, tasks: Sequence[Task], total: int, solved: Sequence[int] = ()
) -> int:
    """Give the buffer's curriculum its tasks; return how many were new. Raises `ConflictError` for another pool.

    solved: places of tasks of which the trainer has a success from before the run.
    """
    body = {"tasks": [task_to_map(task) for task in tasks], "total": total, "solved": list(solved)}
    return int((await client.tell("/v1/pool", body))["added"])


class PoolPlan:
    """Gives the buffer's curriculum the tasks it chooses among. A repeat after a crash changes nothing."""

    def __init__(self, tasks: Sequence[Task], total: int, solved: Sequence[int] = ()) -> None:
        """solved: places of tasks of which there is a success from before the run."""
        self.tasks = tasks
        self._total = total
        self._solved = solved
        self._given = False

    async def feed(self, client: BufferClient) -> None:
        """Give the tasks, once."""
        if not self._given:
            await add_pool(client, self.tasks, self._total, self._solved)
            self._given = True


def plan_pool(config: Config) -> PoolPlan:
    """Return the pool of a run as its plan. Raises `ConfigError`, `InputError`."""
    tasks = pool_of(config)
    return PoolPlan(tasks, config.env.num_tasks, solved_before(config, tasks))


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
    tasks = pool_of(config)
    make(tasks)
    solved_before(config, tasks)


def solved_before(config: Config, tasks: Sequence[Task]) -> list[int]:
    """Return the places of tasks at which a success was recorded before the run. Raises `ConfigError` for successes at
    other tasks alone."""
    problems = recorded_problems(config)
    found = [place for place, task in enumerate(tasks) if problem(task) in problems] if problems else []
    if problems and not found:
        raise ConfigError(
            f"{KEY}: none of the {len(problems)} problems solved there is one of this run's {len(tasks)} tasks; "
            "they must have the same seed, split and data"
        )
    return found


def _check_pool(key: str, size: int, advice: str) -> None:
    if size > MAX_POOL:
        raise ConfigError(f"{key}: a curriculum chooses among at most {MAX_POOL} tasks, got {size}; {advice}")
