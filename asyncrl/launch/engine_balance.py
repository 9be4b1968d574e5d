"""Which policy of a run has an engine too many, and which one too few, by the load of their engines. Pure.

    the receiver     its engines are full, or requests wait for them
    the donor        has two engines or more, and the others have room for all of its requests
    both             the receiver's load is well above the donor's, and does not fall below it by the move

The load of a policy's engines says how much they have to do, relative to what they can do at once. Engines of different
models are compared by it, whatever a request costs each:

    requests wait    (running + waiting) / running     above 1: all that they can do is what they do
    none waits       the larger of running / (engines * engine.max_num_seqs) and the share of their KV caches in use

It is the mean over the moments at which the trainer waits for groups, since only then sampling holds up the run: under
a synchronous schedule engines are idle at all other times. A queue that comes and goes between two steps of an engine
is no reason: what waits is compared to what runs over all these moments together.

One engine changes over at a time. Then the observations start anew, and the way back takes longer than the way on, as
in `autoscale`. A load that comes and goes is judged by its mean over four cool-downs. That engines follow the requests
of agents where these are skewed is of FlexMARL (arXiv:2602.09578); the rule is not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl.launch.autoscale import (
    FULL,
    PATIENCE,
    QUEUE,
    SPARE,
    STARVED,
    STEPS_SEEN,
    Change,
    may_change,
)

AHEAD = 2.0
"""How many times the donor's load the receiver's must be at least."""
MAIN = "main"
"""How the recipe's own policy is called in lines for the user."""
SEEN = 0.5
"""Share of the moments at which a policy's engines must all have answered for it to be judged by them."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engines of one policy have to do: requests that are decoded and that wait, over all of them.

    max_num_seqs: requests that one engine decodes at once. kv_usage: share of their KV caches in use, 0 to 1.
    """

    engines: int
    running: int
    waiting: int
    max_num_seqs: int
    kv_usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A run at one moment. `time_s`: monotonic. `trainer_waits`: for groups of its next batch. loads: by policy, of
    those whose engines have all answered; "" is the recipe's own."""

    time_s: float
    version: int
    trainer_waits: bool
    loads: Mapping[str, EngineLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Move:
    """One engine changes over from the donor to the receiver, two policies, and why in words."""

    donor: str
    receiver: str
    reason: str


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """The load of a policy's engines over some time; see the module."""

    engines: int
    load: float
    queued: float
    """Requests that wait, as a share of those that are decoded."""

    @property
    def saturated(self) -> bool:
        return self.load >= FULL

    def with_engines(self, engines: int) -> float:
        """Return what the load would be with so many engines and the same requests."""
        return self.load * self.engines / engines

    def __str__(self) -> str:
        return f"{self.load:.0%}{' (requests wait)' if self.queued >= QUEUE else ''}"


def decide(
    window: Sequence[Moment], changes: Mapping[str, Change], held: Collection[str], cooldown_s: float
) -> Move | None:
    """Return which engine changes over now, None where none does.

    window: what was seen since the latest change, oldest first. It must be so of all of that and of the latest part
    alone. changes: of each policy the latest one, an engine more (`step` 1) or fewer (-1). held: policies that get none
    now.
    """
    if not window or not _long_enough(window[0], window[-1], cooldown_s):
        return None
    latest, whole = _loads(_latest(window, cooldown_s)), _loads(window)
    now = window[-1].time_s

    def free(policy: str, step: int) -> bool:
        """True where a policy may get (1) or give (-1) an engine."""
        return may_change(changes.get(policy), step, now, cooldown_s)

    by_load = sorted(latest.keys() & whole.keys(), key=lambda policy: (latest[policy].load, policy))
    for receiver in reversed(by_load):
        for donor in by_load:
            if donor == receiver or receiver in held or not free(receiver, 1) or not free(donor, -1):
                continue
            if all(_worth_it(seen[donor], seen[receiver]) for seen in (latest, whole)):
                loads = [f"{called(one)} {latest[one]}" for one in (receiver, donor)]
                return Move(donor, receiver, f"load of the engines: {', '.join(loads)}")
    return None


def called(policy: str) -> str:
    """Return how a policy is called in lines for the user, "" being the recipe's own."""
    return policy or MAIN


def trim(window: Sequence[Moment], cooldown_s: float) -> list[Moment]:
    """Return the part of a window that decides: the latest that has four cool-downs. A load that comes and goes within
    these is judged by its mean."""
    start = 0
    while start + 1 < len(window) and window[-1].time_s - window[start + 1].time_s >= PATIENCE * cooldown_s:
        start += 1
    return list(window[start:])


def _latest(window: Sequence[Moment], cooldown_s: float) -> Sequence[Moment]:
    """Return the latest part that is long enough."""
    start = 0
    while start + 1 < len(window) and _long_enough(window[start + 1], window[-1], cooldown_s):
        start += 1
    return window[start:]


def _long_enough(first: Moment, last: Moment, cooldown_s: float) -> bool:
    """True for a cool-down with two whole steps, or four cool-downs: within a step the load varies."""
    seen_s, steps = last.time_s - first.time_s, last.version - first.version
    return seen_s >= PATIENCE * cooldown_s or (seen_s >= cooldown_s and steps >= STEPS_SEEN)


def _loads(window: Sequence[Moment]) -> dict[str, MeanLoad]:
    """Return the load of each policy's engines that can be judged, of none where the trainer has hardly waited."""
    waiting = [one for one in window if one.trainer_waits]
    if len(waiting) < STARVED * len(window):
        return {}
    found = {policy: _load(policy, waiting) for policy in window[-1].loads}
    return {policy: load for policy, load in found.items() if load is not None}


def _worth_it(donor: MeanLoad, receiver: MeanLoad) -> bool:
    """True where the receiver lacks an engine, the donor can do without one, and neither is so the other way round
    afterwards."""
    if donor.engines < 2 or not receiver.saturated or receiver.load < AHEAD * donor.load:
        return False
    left, got = donor.with_engines(donor.engines - 1), receiver.with_engines(receiver.engines + 1)
    return donor.queued < QUEUE and left <= SPARE and left <= got


def _load(policy: str, moments: Sequence[Moment]) -> MeanLoad | None:
    """Return the load of a policy's engines; None where too little was seen of it."""
    seen = [one.loads[policy] for one in moments if policy in one.loads]
    if not seen or len(seen) < SEEN * len(moments):
        return None
    running, waiting = sum(one.running for one in seen), sum(one.waiting for one in seen)
    queued = waiting / max(1, running)
    if queued >= QUEUE:
        load = 1 + queued
    else:
        places = sum(one.engines * one.max_num_seqs for one in seen)
        load = max(running / places, sum(one.kv_usage for one in seen) / len(seen))
    return MeanLoad(seen[-1].engines, load, queued)
