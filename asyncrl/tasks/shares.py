"""Which of all tasks a run plays, where an extension leaves some to other runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.types import Task


def own_share(tasks: Iterable[Task], config: Config) -> Iterator[Task]:
    """Yield the tasks that this run plays, in their order."""
    for row in rows("task_shares"):
        if row.wanted(config):
            tasks = row.load()(tasks, config)
    yield from tasks
