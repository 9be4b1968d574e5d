"""The strict staleness bound as arithmetic.

S is `max_staleness`, P is groups per step. A group admitted at version v must be trained in the step that
starts at version v + S at the latest: then no token is older than S versions when it is trained.

Admission: at most (S + 1) * P groups are admitted and not yet trained. Consumption at version k: ready groups
may go ahead of unfinished ones only while every deadline stays feasible. With n_d groups left due at d,

    for every j > k:   sum over d <= j of n_d   <=   (j - k) * P

because steps k+1 .. j train (j - k) * P groups. Choosing ready groups by earliest deadline keeps the left
side as small as it can be for every j at once, so if that choice fails, every choice does, and the step must
wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """A group that holds a slot and is not bound to a step."""

    id: str
    deadline: int
    """Version at whose step it must be trained at the latest."""
    order: int
    """Position in the order of leases."""
    ready: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups of a step, or those it waits for."""

    groups: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    """Unfinished groups of which at least one must finish first; empty when `groups` is decided."""


def capacity(max_staleness: int, groups_per_step: int) -> int:
    """Return how many groups may be admitted and untrained at once."""
    return (max_staleness + 1) * groups_per_step


def deadline(version: int, max_staleness: int) -> int:
    """Return the last version whose step may train a group admitted at `version`."""
    return version + max_staleness


def feasible(deadlines: Sequence[int], version: int, groups_per_step: int) -> bool:
    """True when groups with these deadlines can all be trained in steps after `version`."""
    return first_infeasible(deadlines, version, groups_per_step) is None


def first_infeasible(deadlines: Sequence[int], version: int, groups_per_step: int) -> int | None:
    """Return the earliest j at which too many groups are due, None when there is none."""
    for count, due in enumerate(sorted(deadlines), 1):
        if count > (due - version) * groups_per_step:
            return due
    return None


def choose(groups: Sequence[Admitted], version: int, groups_per_step: int, last: bool = False) -> Choice:
    """Choose the step that starts at `version`.

    `last` says that no further group will be admitted, so a short batch may be the plan's last one.
    Ties in deadline go to the older lease.
    """
    by_deadline = sorted(groups, key=lambda g: (g.deadline, g.order))
    ready = [g for g in by_deadline if g.ready]
    unfinished = [g for g in by_deadline if not g.ready]
    if len(ready) < groups_per_step and (unfinished or not last):
        return Choice(awaited=tuple(g.id for g in unfinished))
    chosen = ready[:groups_per_step]
    taken = {g.id for g in chosen}
    left = [g for g in by_deadline if g.id not in taken]
    due = first_infeasible([g.deadline for g in left], version, groups_per_step)
    if due is not None:
        return Choice(awaited=tuple(g.id for g in unfinished if g.deadline <= due))
    return Choice(groups=tuple(g.id for g in chosen))
