"""A process on its way into a run or out of it, for what changes their number (`scaling`).

    Growth       started -> it serves, or does not
    Retirement   takes nothing new -> has nothing left, or the deadline -> SIGTERM -> it has ended

Each change is a line in `scaling.jsonl`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.clock import stamp_s
from asyncrl.credentials import Credentials
from asyncrl.launch.processes.process_group import STOP_GRACE_S, ManagedProcess, with_reason
from asyncrl.launch.reports.activity import states
from asyncrl.startup import StartDeadline

FILE = "scaling.jsonl"
OBSERVE_EVERY_S = 2.0
OBSERVED_PER_COOLDOWN = 4
"""Observations at least, where a cool-down is short."""
HEARD_S = 10.0
"""Until then everybody has heard that an engine or an environment service takes nothing new."""
RETRY_COOLDOWNS = 4
"""Cool-downs for which nothing is started after a start that failed, and twice as many after each further one in a row:
memory that is short now, or a machine that is missing, may be there later."""
MOST_RETRY_COOLDOWNS = 64
WORK = {"rollout": "groups", "env": "sessions", "engine": "requests"}
"""What a process of each role has to finish."""


def observe_every_s(cooldown_s: float) -> float:
    """Return how often a run is observed."""
    return min(OBSERVE_EVERY_S, cooldown_s / OBSERVED_PER_COOLDOWN)


def trainer_waits(schedule: str, stats: Mapping[str, Any]) -> bool:
    """True while the trainer waits for groups, by the latest counts of its buffer."""
    return bool(stats["waiting_for_groups" if schedule == "periodic" else "waiting_for_batch"] > 0)


@dataclass(slots=True)
class Growth:
    """A process that has been started and does not serve yet."""

    process: ManagedProcess
    deadline: StartDeadline

    @property
    def serves(self) -> bool:
        return self.process.alive() and self.process.announced()

    def failure(self) -> str:
        """Return why it will not serve, "" while it may."""
        ended = "" if self.process.alive() else with_reason(self.process, self.process.ending())
        return ended or self.deadline.missed()


@dataclass(slots=True)
class Retirement:
    """A process that takes nothing new. Monotonic seconds."""

    role: str
    process: ManagedProcess
    since: float
    informed: bool = False
    """Whether it knows itself; only workers are told."""
    ending: float | None = None
    """When it was asked to end."""
    how: str = ""
    """"drained", or why it ended before: "deadline", "died"."""
    death: str = ""
    """How it died, with the error in its log."""
    unfinished: int = 0
    """What it still had then: groups of a worker, requests of an engine, sessions of an environment service."""

    @property
    def heard(self) -> bool:
        """True when everybody has heard of it who is told by the job."""
        return time.monotonic() - self.since > HEARD_S

    async def ended(self, credentials: Credentials, deadline_s: float, heard: bool) -> bool:
        """Go on; True when it has ended, or has been killed next if it still lives.

        deadline_s: how long it may finish what it has. heard: whether nobody gives it anything any more.
        """
        now = time.monotonic()
        if self.ending is not None:
            return not self.process.alive() or now - self.ending > STOP_GRACE_S
        if not self.process.alive():
            self.how, self.death = "died", with_reason(self.process, self.process.ending())
        elif await self._has_nothing_left(credentials) and heard:
            self.how = "drained"
        elif now - self.since > deadline_s:
            self.how = "deadline"
        if self.how:
            self.ending = now
            self.process.running_on.note_descendants(self.process.popen)
            self.process.popen.terminate()
        return False

    async def _has_nothing_left(self, credentials: Credentials) -> bool:
        found = (await states(self.role, [self.process], credentials)).get(self.process.name)
        if found is None:
            return False
        self.unfinished = work_of(self.role, found)
        return not self.unfinished

    def description(self) -> str:
        """Return how it left, in words."""
        what = WORK[self.role]
        return {
            "drained": "all it had is finished",
            "deadline": f"{self.unfinished} {what} were not finished in time and are played again",
            "died": f"it {self.death} meanwhile, and the {what} that it had are played again",
        }[self.how]

    def record(self) -> dict[str, Any]:
        """Return the same for `scaling.jsonl`."""
        left = {"name": self.process.name, "left": self.how, "unfinished": self.unfinished}
        return left | ({"death": self.death} if self.death else {})


class FailedStarts:
    """Starts that failed in a row, by the role or the policy that was to have the process."""

    def __init__(self, cooldown_s: float) -> None:
        self.cooldown_s = cooldown_s
        self._counts: dict[str, int] = {}
        self._until: dict[str, float] = {}
        """When the next one may be tried, in monotonic seconds."""

    def failed(self, key: str) -> float:
        """Count another one; return for how many seconds none may be tried."""
        self._counts[key] = self._counts.get(key, 0) + 1
        wait_s = self.cooldown_s * min(MOST_RETRY_COOLDOWNS, RETRY_COOLDOWNS * 2 ** (self._counts[key] - 1))
        self._until[key] = time.monotonic() + wait_s
        return wait_s

    def succeeded(self, key: str) -> None:
        """Count from zero again."""
        self._counts.pop(key, None)
        self._until.pop(key, None)

    def held(self) -> set[str]:
        """Return for which none may be tried now."""
        now = time.monotonic()
        return {key for key, until in self._until.items() if now < until}


def work_of(role: str, state: Mapping[str, Any]) -> int:
    """Return what a process still has to finish, by what it says of itself."""
    if role == "rollout":
        return len(state.get("running", ()))
    return int(state["sessions"] if role == "env" else state["running"] + state["waiting"])


def write_event(folder: Path, event: Mapping[str, Any]) -> None:
    """Append an event to the `scaling.jsonl` of a run."""
    with open(folder / FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps({"time": round(stamp_s(), 3)} | dict(event)) + "\n")
