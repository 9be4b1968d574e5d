"""Faults of `chaos.py` that go away again: a process that is suspended, out of file descriptors, or without a disk, and
a clock that is set.

Whatever a process of a run goes through for less than its limit of silence, it must come back from by itself. What is
suspended for longer is killed and started again.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from asyncrl.clock import stamp_s

from .faults import INNER, Monkey
from .set_clock import follow_it, set_clock

SOME_S = 8.0
"""How long a process has no further file descriptor, or cannot write to files."""
MOST_RETRIES = 20
CLOCK_S = (3600, -3600)
"""How far ahead of the machine's a run's clock is set, one after the other, and then right again."""
ENDED = "ended with exit code"
"""How the launcher's record of a process begins that nothing has killed."""
NAMED = {
    "EMFILE": re.compile(r"too many (open files|files are open)", re.IGNORECASE),
    "no disk": re.compile(r"EFBIG|File too large|disk I/O error"),
}
"""What a process says that a fault ended."""
LATE_S = 10.0
"""After the end of a fault, a death may still be due to it."""
SERVED_BY = {"vllm": "engine", "trainer rank": "trainer"}
"""The process that the launcher restarts when an inner one hangs."""
ANSWERED_FOR = ("engine",)
"""Roles whose inner process answers requests and probes without them: to suspend them hangs nothing."""
WATCHED_BY_OTHERS = ("grader",)
"""Roles that the launcher does not watch: whoever asks the grader ends it after two minutes without a verdict."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A fault that was made: kind and victim, when it began and ended in seconds since 1970."""

    kind: str
    role: str
    seconds: float
    began_s: float
    ended_s: float


class LendingMonkey(Monkey):
    """Makes every fault of a list once, one after the other, each after a further step of the run.

    plan: pairs of a kind and its seconds, each for every kind of victim. Kinds: "SIGSTOP"; "EMFILE", no further file
    descriptor; "no disk", where files cannot grow (EFBIG); "partition", all its connections cut; "clock", the clock of
    all of the run's processes an hour ahead, an hour behind, and right again.
    """

    def __init__(self, *args: Any, plan: Sequence[tuple[str, float]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._left = [
            (kind, seconds, role)
            for kind, seconds in plan
            for role in (self._victims if kind != "clock" else ["machine"])
            # No connection of another role leads to these.
            if kind != "partition" or role not in (*INNER, *WATCHED_BY_OTHERS)
        ]
        self.lent: list[Lent] = []
        self.kills = len(self._left)

    def run(self) -> None:
        self._begun = time.monotonic()
        seen, retries = 0, 0
        while self._left and not self._closed.is_set():
            seen = self._wait_beyond(seen)
            self.out_of_time = time.monotonic() - self._begun > self.seconds
            if self._closed.is_set() or self.out_of_time:
                return
            kind, seconds, role = self._left[0]
            made = self._lend(kind, seconds, role)
            retries = 0 if made else retries + 1
            if made or retries > MOST_RETRIES:
                self._left.pop(0)

    def _lend(self, kind: str, seconds: float, role: str) -> bool:
        """Make a fault and take it back; return False where there is no such process now."""
        began_s = stamp_s()
        made = self._made(kind, seconds, role)
        if made:
            self.lent.append(Lent(kind, role, seconds, began_s, stamp_s()))
        return made

    def _made(self, kind: str, seconds: float, role: str) -> bool:
        if kind == "partition":
            return self._part(seconds, role)
        if kind == "clock":
            return self._set_clocks(seconds)
        processes = self._processes(role)
        if not processes:
            return False
        process = self.random.choice(processes)
        try:
            take_back = _begin(process, kind)
        except psutil.NoSuchProcess:
            return False
        self._note(role, kind, f"for {seconds:.0f} s")
        self._closed.wait(seconds)
        with contextlib.suppress(psutil.NoSuchProcess):
            take_back()
        return True

    def _set_clocks(self, seconds: float) -> bool:
        pids = [process.pid for role in self._victims for process in self._processes(role)]
        self._note(
            "machine", "clock", f"of {follow_it(pids)} of {len(pids)} processes, for {seconds:.0f} s each"
        )
        for ahead_s in (*CLOCK_S, 0):
            set_clock(ahead_s)
            self._closed.wait(seconds)
        return True

    def killed(self, limit_s: float) -> tuple[list[str], list[str]]:
        """Return what was restarted though it neither was kept for its limit of silence nor ended by itself for want of
        files, and the roles of what was kept for longer and was not restarted."""
        record = self.roles.folder / "restarts.jsonl"
        deaths = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        hasty = [
            death["name"]
            for death in deaths
            if not any(_explains(one, death, limit_s) or _ended_of(one, death) for one in self.lent)
        ]
        long = [
            one
            for one in self.lent
            if one.kind == "SIGSTOP"
            and one.role not in (*ANSWERED_FOR, *WATCHED_BY_OTHERS)
            # A run may end before what was suspended would have come back.
            and min(one.seconds, one.ended_s - one.began_s) > limit_s
        ]
        left = [one.role for one in long if not any(_explains(one, death, limit_s) for death in deaths)]
        return hasty, left

    def _part(self, seconds: float, role: str) -> bool:
        links = [
            link
            for (caller, callee), link in self.network.links.items()
            if role in (caller, callee.split("-")[0])
        ]
        for link in links:
            self.network.cut(link, seconds)
        if links:
            self._note(role, "partition", f"for {seconds:.0f} s, of {len(links)} links")
            self._closed.wait(seconds)
        return bool(links)


def _explains(fault: Lent, death: dict[str, Any], limit_s: float) -> bool:
    """Whether a process was killed because it was suspended for longer than its limit."""
    died_s = death["time"] - death["down_s"]
    return (
        fault.kind == "SIGSTOP"
        and fault.seconds > limit_s
        and death["name"].split("-")[0] == SERVED_BY.get(fault.role, fault.role)
        and fault.began_s <= died_s <= fault.ended_s + LATE_S
    )


def _ended_of(fault: Lent, death: dict[str, Any]) -> bool:
    """Whether a process ended by itself and says that it, or one that it asked, could not open or write files. On a
    busy machine it gets to say so minutes later."""
    died_s = death["time"] - death["down_s"]
    return (
        fault.kind in NAMED
        and fault.began_s <= died_s
        and death["why"].startswith(ENDED)
        and NAMED[fault.kind].search(death.get("reason", "")) is not None
    )


def _begin(process: psutil.Process, kind: str) -> Any:
    """Begin a fault; return what ends it."""
    if kind == "SIGSTOP":
        process.suspend()
        return process.resume
    what = {"EMFILE": resource.RLIMIT_NOFILE, "no disk": resource.RLIMIT_FSIZE}[kind]
    before = process.rlimit(what)
    process.rlimit(what, (process.num_fds() if kind == "EMFILE" else 0, before[1]))
    return lambda: process.rlimit(what, before)
