"""Hooks of the ledger: what has a say in which tasks are leased, with what, and sees what became of them.

    plan -> tasks, when none waits           on_put -> a group that is put for good
    on_grant -> a lease is new               on_take -> a step has its batch
    terms -> what a group is leased with     on_commit -> version v + 1 follows v
    on_open -> the ledger is opened          on_rollback -> the ledger returns to an earlier version

Every call is part of the ledger's transaction that it belongs to: what a hook writes to the store is undone with it. It
runs in the buffer's event loop, where everybody waits for it, so it must be done within `SLOW_S`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store
from asyncrl.types import Group

log = logging.getLogger("asyncrl.buffer")

SLOW_S = 2.0
"""A call of a hook that takes longer is logged. The buffer takes itself for suspended after 5 s, and gives every lease
its full time again."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a task's group is leased with."""

    group_size: int
    max_turns: int = 0
    """Turns of its episodes, where fewer than the run allows; 0 for as many as it allows."""
    extras: dict[str, Any] = field(default_factory=dict)
    """JSON values for the worker, under names that no other hook uses."""


class LeaseHook:
    """Does nothing; a hook has those methods of its own that it needs. `seq` is a task's number in the ledger."""

    def on_open(self, changed: bool) -> None:
        """The ledger is opened. changed: under other limits than before, or for the first time."""

    def plan(self) -> bool:
        """Add tasks to the plan, as none of it waits; True when there are any."""
        return False

    def on_grant(self, seq: int, version: int) -> None:
        """A task is admitted at `version`, perhaps again."""

    def terms(self, seq: int, terms: Terms) -> Terms:
        """Return what a task's group is leased with, `terms` unless this hook has others.

        The answer must be the same as long as the task is leased.
        """
        return terms

    def may_keep(self, group: Group) -> bool:
        """False when `keeps` is False for the group, whatever the ledger holds. For any thread; reads no store."""
        return False

    def keeps(self, seq: int, deadline: int, group: Group) -> bool:
        """True when a group must be kept that has no signal; `deadline` is the step that trains it at the latest."""
        return False

    def on_put(self, seq: int, group: Group) -> None:
        """A group is put for good, whether it will be trained or was dropped; its task may still be played again."""

    def on_take(self, step: int, waited: bool, now_s: float) -> None:
        """The batch of `step` has been taken. waited: whether it was asked for before it was complete."""

    def on_commit(self, version: int) -> None:
        """`version` has just been followed by the next one."""

    def on_rollback(self, version: int) -> None:
        """The ledger has returned to `version`; the tasks trained since are planned again."""

    def stats(self) -> dict[str, float]:
        """Return what the buffer's status shows of this hook, under names that no other one uses."""
        return {}


HookFactory = Callable[[Store, LedgerSettings], LeaseHook]
"""Makes a hook, and its tables where they are missing."""


class Hooks:
    """The hooks of a ledger, called one after the other and timed; its methods are those of `LeaseHook`."""

    def __init__(self, hooks: Sequence[LeaseHook]) -> None:
        self.hooks = tuple(hooks)

    def on_open(self, changed: bool) -> None:
        self._call("on_open", changed)

    def plan(self) -> bool:
        return any(self._call("plan"))

    def on_grant(self, seq: int, version: int) -> None:
        self._call("on_grant", seq, version)

    def terms(self, seq: int, terms: Terms) -> Terms:
        """Each hook gets the terms of the one before it."""
        for hook in self.hooks:
            with _timer(f"{type(hook).__name__}.terms"):
                terms = hook.terms(seq, terms)
        return terms

    def may_keep(self, group: Group) -> bool:
        return any(hook.may_keep(group) for hook in self.hooks)

    def keeps(self, seq: int, deadline: int, group: Group) -> bool:
        return any(self._call("keeps", seq, deadline, group))

    def on_put(self, seq: int, group: Group) -> None:
        self._call("on_put", seq, group)

    def on_take(self, step: int, waited: bool, now_s: float) -> None:
        self._call("on_take", step, waited, now_s)

    def on_commit(self, version: int) -> None:
        self._call("on_commit", version)

    def on_rollback(self, version: int) -> None:
        self._call("on_rollback", version)

    def stats(self) -> dict[str, float]:
        return {name: value for stats in self._call("stats") for name, value in stats.items()}

    def _call(self, method: str, *values: Any) -> list[Any]:
        """Return what the method of each hook returns."""
        answers = []
        for hook in self.hooks:
            with _timer(f"{type(hook).__name__}.{method}"):
                answers.append(getattr(hook, method)(*values))
        return answers


@contextmanager
def _timer(call: str) -> Iterator[None]:
    """Log a call that took too long."""
    start = time.monotonic()
    try:
        yield
    finally:
        took_s = time.monotonic() - start
        if took_s > SLOW_S:
            log.warning("%s took %.1f s, in which the buffer answered nobody", call, took_s)
