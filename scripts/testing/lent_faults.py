"""Faults of `chaos.py` that go away again: a process that is suspended, out of file descriptors, or without a disk.

Whatever a process of a run goes through for less than its limit of silence, it must come back from by itself.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Sequence
from typing import Any

import psutil

from .faults import Monkey

SOME_S = 8.0
"""How long a process has no further file descriptor, or cannot write to files."""
MOST_RETRIES = 20


class LendingMonkey(Monkey):
    """Makes every fault of a list once, one after the other, each after a further step of the run.

    plan: pairs of a kind and its seconds, each for every kind of victim. Kinds: "SIGSTOP"; "EMFILE", no further file
    descriptor; "no disk", where files cannot grow (EFBIG); "partition", all its connections cut.
    """

    def __init__(self, *args: Any, plan: Sequence[tuple[str, float]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._left = [(kind, seconds, role) for kind, seconds in plan for role in self._victims]
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
        if kind == "partition":
            return self._part(seconds, role)
        processes = self._processes(role)
        if not processes:
            return False
        process = self.random.choice(processes)
        with contextlib.suppress(psutil.NoSuchProcess):
            self._note(role, kind, f"for {seconds:.0f} s")
            take_back = _begin(process, kind)
            self._closed.wait(seconds)
            take_back()
            return True
        return False

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


def _begin(process: psutil.Process, kind: str) -> Any:
    """Begin a fault; return what ends it."""
    if kind == "SIGSTOP":
        process.suspend()
        return process.resume
    what = {"EMFILE": resource.RLIMIT_NOFILE, "no disk": resource.RLIMIT_FSIZE}[kind]
    before = process.rlimit(what)
    process.rlimit(what, (process.num_fds() if kind == "EMFILE" else 0, before[1]))
    return lambda: process.rlimit(what, before)
