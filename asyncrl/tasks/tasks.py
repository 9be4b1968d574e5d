"""The tasks of a run: where they come from, and how they are planned in the buffer ahead of need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from asyncrl.config import Config
from asyncrl.env.registry import load_env
from asyncrl.env.tasks import read_task_file
from asyncrl.errors import ConfigError
from asyncrl.services.buffer.client import TASKS_PER_CALL, BufferClient
from asyncrl.tasks.data_rows import has_rows, rows_of
from asyncrl.tasks.shares import own_share
from asyncrl.types import Task

FEED_FACTOR = 4
"""Steps' worth of tasks kept planned ahead when the recipe gives no number of tasks."""


class TaskPlan:
    """Feeds tasks to the buffer ahead of need; endless unless the recipe counts them.

    The buffer identifies tasks by id, so a plan that starts over after a crash plans nothing twice.
    """

    def __init__(self, tasks: Iterator[Task], total: int, chunk: int) -> None:
        self._tasks = tasks
        self._left = total
        self._endless = total == 0
        self._chunk = chunk
        self._closed = False

    async def feed(self, client: BufferClient) -> None:
        """Keep enough tasks pending; close the plan after the last one."""
        chunk = self._chunk
        while not self._closed:
            status = await client.status()
            self._closed = status["plan_closed"]
            if self._closed or status["pending"] >= self._chunk:
                return
            wanted = chunk if self._endless else min(chunk, self._left)
            tasks = list(islice(self._tasks, wanted))
            new = await client.add_tasks(tasks) if tasks else 0
            self._left -= len(tasks)
            if len(tasks) < wanted or (not self._endless and self._left <= 0):
                await client.close_plan()
                self._closed = True
            if new:
                return
            # The plan starts over: a million tasks that are known already are not asked about a few at a time.
            chunk = max(chunk, min(2 * chunk, TASKS_PER_CALL))


def planned_in_order(config: Config) -> TaskPlan:
    """Return the tasks of a run one after the other. Raises `ConfigError`, `InputError`."""
    tasks = tasks_of(config, "train")
    return TaskPlan(
        own_share(tasks if config.env.task_file else _numbered(tasks), config),
        config.env.num_tasks,
        FEED_FACTOR * config.buffer.groups_per_step,
    )


def tasks_of(config: Config, split: str) -> Iterator[Task]:
    """Return the tasks of a split ("train" or "heldout"): the rows of `[data]`, those of the task file, or the
    environment's own.

    A task file without held-out tasks leaves these to the environment. Raises `ConfigError`, `InputError`.
    """
    env = config.env
    if has_rows(config):
        return rows_of(config).tasks(split, env.name)
    if env.task_file and (listed := [t for t in read_task_file(env.task_file, env.name) if t.split == split]):
        return iter(listed)
    if env.task_file and split == "train":
        raise ConfigError(f"env.task_file: {env.task_file}: every task is held out; none is left to train on")
    return load_env(env.name).tasks(split, env.name, **env.config)


def _numbered(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield tasks whose ids sort in their own order."""
    for number, task in enumerate(tasks):
        yield Task(
            id=f"{number:08d}-{task.id}", env=task.env, seed=task.seed, split=task.split, data=task.data
        )
