"""A complete task: an office, up to three goals that do not conflict, and unrelated events."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

from asyncrl.envs.office.goals import MAKERS, Drift, Goal, Maker
from asyncrl.envs.office.world import DAYS, HOURS, PEOPLE, WORDS, Mail, World, furnish

LAST_LEVEL = 4
GOALS_AT_LAST = 3


@dataclass(frozen=True, slots=True)
class Problem:
    world: World
    """The initial state; an episode works on a copy."""
    goals: tuple[Goal, ...]
    drifts: tuple[Drift, ...]
    """The goals' events and the others, in order."""
    expected: dict[str, Any]
    """Snapshot of the expected final state."""

    @property
    def text(self) -> str:
        return "\n".join(goal.text for goal in self.goals)


def make(rng: random.Random, level: int, services: frozenset[str]) -> Problem:
    """Draw a task of a level that needs only the given services.

    Levels 1 to 3 have one goal, level 4 several. From level 2 on, unrelated mails arrive and meetings move. Raises
    `ValueError` if the services allow no such task.
    """
    while True:
        world = furnish(rng)
        makers = choose(rng, level, services)
        goals = tuple(maker(rng, world) for maker in makers)
        drifts = [drift for goal in goals for drift in goal.drifts]
        if level > 1:
            touched = frozenset[str]().union(*(MAKERS[maker][1] for maker in makers))
            drifts += background(rng, world, "calendar" in touched)
        drifts.sort(key=lambda drift: drift.turn)
        after = copy.deepcopy(world)
        for drift in drifts:
            drift.change(after)
        untouched = after.snapshot()
        for goal in goals:
            goal.effect(after)
        if after.snapshot() != untouched:
            return Problem(world, goals, tuple(drifts), after.snapshot())


def choose(rng: random.Random, level: int, services: frozenset[str]) -> list[Maker]:
    """Pick one goal of the level, or for the last level goals that share no service, harder ones first."""
    fit = [(of_level, needs, maker) for maker, (of_level, needs) in MAKERS.items() if needs <= services]
    if level < LAST_LEVEL:
        fit = [entry for entry in fit if entry[0] == level]
    if not fit:
        raise ValueError(f"services: no task of level {level} needs only {', '.join(sorted(services))}")
    rng.shuffle(fit)
    if level < LAST_LEVEL:
        return [fit[0][2]]
    fit.sort(key=lambda entry: entry[0] == 1)
    chosen: list[Maker] = []
    used: frozenset[str] = frozenset()
    for _, needs, maker in fit:
        if not needs & used and len(chosen) < GOALS_AT_LAST:
            chosen.append(maker)
            used |= needs
    return chosen


def background(rng: random.Random, world: World, calendar_in_use: bool) -> list[Drift]:
    """Unrelated events: a mail, and a meeting that moves unless goals are about meetings."""
    mail = Mail(rng.choice(PEOPLE), rng.choice(WORDS), " ".join(rng.sample(WORDS, 3)))
    drifts = [Drift(rng.randint(1, 2), lambda w: w.inbox.append(mail))]
    if not calendar_in_use:
        title, slot = rng.choice(list(world.meetings)), (rng.choice(DAYS), rng.choice(HOURS))
        drifts.append(Drift(rng.randint(1, 2), lambda w: w.meetings.update({title: slot})))
    return drifts
