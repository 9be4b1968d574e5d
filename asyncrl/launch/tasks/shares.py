"""Which of all tasks a run plays where several runs train one policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from asyncrl.config import Config
from asyncrl.types import Task


def own_share(tasks: Iterable[Task], config: Config) -> Iterator[Task]:
    """Yield the tasks that this run plays where several train one policy: no two play the same."""
    return islice(tasks, config.outer.member, None, config.outer.members)
