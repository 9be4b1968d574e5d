"""How many rollout workers, environment services and engines a run should have, by the pressure of its buffer. Pure.

    trainer waits for groups    environments have no room or time     one more environment service
                                requests wait for engines             one more engine
                                workers play all they may play        one more worker
    groups wait for trainer     the others could do a role's work     one fewer of it

One role changes by one process at a time. Then the observations start anew, so that what is decided next rests on the
number of processes there is now. What lies between waiting and not waiting changes nothing, and the way back takes
longer than the way on: a load that comes and goes does not make processes come and go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

STARVED = 0.3
"""Share of its time for which the trainer waits for groups, from which on the run needs more processes."""
FED = 0.05
"""The same up to which it may need fewer."""
FULL = 0.9
"""Share of what a process may do, from which on it is saturated."""
SPARE = 0.7
"""Share of what the others may do, up to which they can take over a process's work. The room between it and `FULL` is
what keeps a process from being added again at once."""
QUEUE = 0.1
"""What waits for engines or environment services, as a share of what they do, from which on more of them help."""
CAN_LEASE = 0.5
"""Share of the time for which a further worker would find a group to play, from which on there may be one."""
STEPS_SEEN = 2
"""Steps that are seen before a process is retired: within one, the trainer waits at one time and works at another."""
PATIENCE = 4
"""Cool-downs after which a process is retired even without such steps: the trainer is busy with something else."""
REVERSAL = 3
"""Cool-downs between a change of a role and one in the other direction."""
MAX_WINDOW = 4096

NAMES = {"rollout": "workers", "env": "environment services", "engine": "engines"}


@dataclass(frozen=True, slots=True)
class Load:
    """What the processes of one role have to do. Shares are of what they may do, 0 to 1.

    busy: of workers, groups played; of environment services, places taken; of engines, those with a request.
    queued: what waits for them, as a share of what they do: opens of sessions, requests of engines.
    cpu: processor time, of what the role's Python code can use.
    """

    busy: float = 0.0
    queued: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A run at one moment. `time_s`: monotonic. `trainer_waits`: for groups of its next batch.

    ready: groups that are finished and not taken, as a share of a step's. free_slots: groups that the staleness limit
    admits now. tasks_left: whether tasks wait to be played.
    """

    time_s: float
    version: int
    trainer_waits: bool
    ready: float
    free_slots: int
    tasks_left: bool
    loads: Mapping[str, Load] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A role's latest change: when it was complete, and in which direction."""

    time_s: float
    step: int


@dataclass(frozen=True, slots=True)
class Decision:
    """One more (`step` 1) or one fewer (-1) process of a role, or neither (0, role ""), and why in words."""

    role: str
    step: int
    reason: str


def decide(
    limits: Mapping[str, tuple[int, int]],
    counts: Mapping[str, int],
    window: Sequence[Observation],
    changes: Mapping[str, Change],
    cooldown_s: float,
) -> Decision:
    """Return what to change now.

    limits: least and most processes of the roles that are scaled. counts: how many there are. window: what was
    observed since the latest change, oldest first. changes: of each role the latest one.
    """
    if not window or window[-1].time_s - window[0].time_s < cooldown_s:
        return Decision("", 0, "not enough was seen since the last change")
    now = window[-1].time_s

    def free(role: str, step: int) -> bool:
        """True where the role may go one step in this direction."""
        if role not in limits or not limits[role][0] <= counts[role] + step <= limits[role][1]:
            return False
        return may_change(changes.get(role), step, now, cooldown_s)

    waits = _mean(one.trainer_waits for one in window)
    if waits >= STARVED:
        causes = _causes(window)
        for role, why in causes.items():
            if free(role, 1):
                return Decision(role, 1, f"the trainer waits for {waits:.0%} of the time: {why}")
    if waits <= FED or _bound_blocks(window):
        for role in ("engine", "env", "rollout"):
            if free(role, -1) and (why := _idle(window, role, counts[role], cooldown_s, waits)):
                return Decision(role, -1, why)
    if waits >= STARVED:
        why = "; ".join(causes.values()) or _no_cause(window)
        return Decision("", 0, f"the trainer waits for {waits:.0%} of the time: {why}")
    return Decision("", 0, f"the trainer waits for {waits:.0%} of the time")


def may_change(last: Change | None, step: int, now_s: float, cooldown_s: float) -> bool:
    """True where a change in this direction may follow the latest one: one back takes longer."""
    return last is None or last.step == step or now_s - last.time_s >= REVERSAL * cooldown_s


def trim(window: Sequence[Observation], cooldown_s: float) -> list[Observation]:
    """Return the part of a window that decides: the latest `cooldown_s`, and more until it has `STEPS_SEEN` steps, but
    no more than `PATIENCE` cool-downs."""
    start = max(0, len(window) - MAX_WINDOW)
    while start + 1 < len(window):
        rest = window[start + 1]
        left_s, left = window[-1].time_s - rest.time_s, window[-1].version - rest.version
        if left_s < cooldown_s or (left < STEPS_SEEN and left_s < PATIENCE * cooldown_s):
            break
        start += 1
    return list(window[start:])


def _causes(window: Sequence[Observation]) -> dict[str, str]:
    """Return the roles that more processes would help, with the reason: what is behind the workers first, since workers
    that wait for it look busy."""
    found = {}
    env, engine, worker = (_load(window, role) for role in ("env", "engine", "rollout"))
    if env.queued >= QUEUE:
        found["env"] = "episodes wait for a place in an environment service"
    elif env.cpu >= FULL:
        found["env"] = "the environment services use all of their processor time"
    if engine.queued >= QUEUE:
        found["engine"] = "requests wait for the engines"
    if found:
        return found
    if worker.cpu >= FULL:
        return {"rollout": "the workers use all of their processor time"}
    can_lease = _mean(one.free_slots > 0 and one.tasks_left for one in window)
    if can_lease >= CAN_LEASE and worker.busy >= FULL:
        return {"rollout": "the workers play as many groups as they may, and more are admitted"}
    return {}


def _no_cause(window: Sequence[Observation]) -> str:
    if not all(one.tasks_left for one in window):
        return "no tasks are left to be played"
    if _mean(one.free_slots > 0 for one in window) < CAN_LEASE:
        return "the staleness limit admits no further groups"
    return "neither workers, engines nor environments are saturated"


def _idle(window: Sequence[Observation], role: str, count: int, cooldown_s: float, waits: float) -> str:
    """Return why a role can do with one process less, "" if it cannot."""
    span_s = window[-1].time_s - window[0].time_s
    seen = window[-1].version - window[0].version >= STEPS_SEEN or span_s >= PATIENCE * cooldown_s
    load = _load(window, role)
    # What the others would have to do.
    share = count / (count - 1)
    if not seen or load.queued > 0 or max(load.busy, load.cpu) * share > SPARE:
        return ""
    if _bound_blocks(window) and (role == "rollout" or waits <= FED):
        return f"the staleness limit admits no further groups, and the {NAMES[role]} are busy for {load.busy:.0%}"
    if waits <= FED and _mean(one.ready for one in window) >= 1:
        return f"a step's groups are ready before they are needed, and the {NAMES[role]} are busy for {load.busy:.0%}"
    return ""


def _bound_blocks(window: Sequence[Observation]) -> bool:
    return _mean(one.free_slots <= 0 for one in window) >= FULL


def _load(window: Sequence[Observation], role: str) -> Load:
    """Return the mean load of a role; no load where nothing was seen of it."""
    seen = [one.loads[role] for one in window if role in one.loads]
    if not seen:
        return Load()
    return Load(
        _mean(one.busy for one in seen), _mean(one.queued for one in seen), _mean(one.cpu for one in seen)
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
