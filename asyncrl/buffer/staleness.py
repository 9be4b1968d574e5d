"""The strict staleness limit as arithmetic.

S is `max_staleness`, P is groups per step. A group admitted at version v must be trained in the step that
starts at version v + S at the latest: then no token is older than S versions when it is trained.

Admission: at most (S + 1) * P groups are admitted and not yet trained, or P and a stated number more where that is
less (over-provisioning as in APRIL, arXiv 2509.18521: groups that are unfinished when a step has its batch continue in
the next). A step that has its batch trains none of what is admitted before its commit: it counts as P groups, however
few it has. Consumption at step k: ready groups may overtake unfinished ones only while every deadline stays feasible.
With n_d groups left due at d,

    for every j > k:   sum over d <= j of n_d   <=   (j - k) * P

because steps k+1 .. j train (j - k) * P groups. Choosing ready groups by earliest deadline keeps the left
side as small as it can be for every j at once, so if that choice fails, every choice does, and the step must
wait.

A step may be complete with fewer than P groups (`EarlyEnd`); it takes P all the same where fewer would leave a deadline
infeasible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admitted:
    """A group that holds a slot and is not taken by a step."""

    id: str
    deadline: int
    """Version at whose step it must be trained at the latest."""
    order: int
    """Position in the order of leases."""
    ready: bool
    tokens: int = 0
    """Tokens sampled for it, once it is ready."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups of a step, or those it waits for."""

    groups: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    """Unfinished groups of which at least one must finish first; empty when `groups` is decided."""


class EarlyEnd:
    """When a step is complete though it has fewer groups than `groups_per_step`: here never."""

    def reached(self, groups: Sequence[Admitted]) -> int:
        """Return with how many of the first groups the step is complete, 0 where not even with all of them."""
        return 0

    def may_be_reached(self, tokens: int) -> bool:
        """Return whether it is complete with all groups that are ready, which have so many tokens."""
        return False


NEVER = EarlyEnd()


def capacity(max_staleness: int, groups_per_step: int, over_provision: int | None = None) -> int:
    """Return how many groups may be admitted and untrained at once; `over_provision` of them beyond one step's."""
    most = (max_staleness + 1) * groups_per_step
    return most if over_provision is None else min(most, groups_per_step + over_provision)


def free_slots(
    slots: int, num_open: int, num_taken: int, batches: int, max_staleness: int, groups_per_step: int
) -> int:
    """Return how many more groups may be admitted; negative where the limits have been lowered.

    slots: what `capacity` returned. num_open: groups that are admitted and not taken. num_taken: groups of the
    `batches` that are taken and not committed.
    """
    in_time = (max_staleness + 1 - batches) * groups_per_step
    return min(slots - num_taken, in_time) - num_open


def deadline(version: int, max_staleness: int) -> int:
    """Return the last version whose step may train a group admitted at `version`."""
    return version + max_staleness


def first_infeasible(deadlines: Sequence[int], version: int, groups_per_step: int) -> int | None:
    """Return the earliest j at which more groups are due than the steps after `version` can train; None for none."""
    for count, due in enumerate(sorted(deadlines), 1):
        if count > (due - version) * groups_per_step:
            return due
    return None


def choose(
    groups: Sequence[Admitted],
    version: int,
    groups_per_step: int,
    last: bool = False,
    early: EarlyEnd = NEVER,
) -> Choice:
    """Choose the step that starts at `version`.

    `last` says that no further group will be admitted, so a short batch may be the plan's last one. Ties in deadline go
    to the older lease.
    """
    by_deadline = sorted(groups, key=lambda g: (g.deadline, g.order))
    ready = [g for g in by_deadline if g.ready]
    unfinished = [g for g in by_deadline if not g.ready]
    reached = early.reached(ready[:groups_per_step])
    if not reached and len(ready) < groups_per_step and (unfinished or not last):
        return Choice(awaited=tuple(g.id for g in unfinished))
    due = None
    for count in range(reached or groups_per_step, groups_per_step + 1):
        chosen = ready[:count]
        taken = {g.id for g in chosen}
        left = [g.deadline for g in by_deadline if g.id not in taken]
        due = first_infeasible(left, version, groups_per_step)
        if due is None:
            return Choice(groups=tuple(g.id for g in chosen))
    return Choice(awaited=tuple(g.id for g in unfinished if due is not None and g.deadline <= due))


def can_choose(
    ready: Mapping[int, int],
    unfinished: Mapping[int, int],
    tokens: int,
    version: int,
    groups_per_step: int,
    last: bool = False,
    early: EarlyEnd = NEVER,
) -> bool:
    """Return whether `choose` would decide, or has nothing left to decide on, from counts alone.

    ready, unfinished: groups by deadline. tokens: of all that are ready. The others as in `choose`. Groups of one
    deadline are alike to `first_infeasible`, so their numbers suffice; where a step may end early, the largest one that
    it may choose is the most feasible.
    """
    num_ready = sum(ready.values())
    complete = num_ready >= groups_per_step or early.may_be_reached(tokens)
    if not complete and not (last and not any(unfinished.values())):
        return False
    to_choose, left = min(groups_per_step, num_ready), 0
    for due in sorted(ready.keys() | unfinished.keys()):
        chosen = min(to_choose, ready.get(due, 0))
        to_choose -= chosen
        left += ready.get(due, 0) - chosen + unfinished.get(due, 0)
        if left > (due - version) * groups_per_step:
            return False
    return True
