"""The tasks of a run that trains one policy with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from asyncrl.config import Config
from asyncrl.extensions.outer.settings import OuterConfig
from asyncrl.types import Task


def own_share(tasks: Iterable[Task], config: Config) -> Iterator[Task]:
    """Yield the tasks that this member plays: no two members play the same."""
    outer = config.section(OuterConfig)
    return islice(tasks, outer.member, None, outer.members)
