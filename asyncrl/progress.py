"""Progress of phases that may take long: how much is done, at which rate, and about how long the rest takes.

Nothing is said of what ends within `SILENT_S`. On a terminal one line is written anew; elsewhere, as in a log, plain
lines are written, ever more seldom.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

SILENT_S = 5.0
"""Seconds after which a phase is spoken of."""
TERMINAL_EVERY_S = 0.5
LOG_EVERY_S = (10.0, 60.0)
"""Least and most seconds between two lines of a log."""

Advance = Callable[[int], None]
_open: TextIO | None = None
"""The terminal whose last line a phase is writing anew."""


class Progress:
    """What is told of one phase. Its methods may be called from any thread, and as often as one likes."""

    def __init__(self, what: str, total: int = 0, unit: str = "", stream: TextIO | None = None) -> None:
        """total: how much there is to do; 0 where that is not known. unit: what is counted, in the plural."""
        self.what, self.total, self.unit = what, total, unit
        self.done = 0
        self.note = ""
        """Said behind the numbers."""
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._next = self._started + SILENT_S
        self._every = TERMINAL_EVERY_S if self._terminal else LOG_EVERY_S[0]
        self._first: tuple[float, int] | None = None
        """When the first of it was done, and how much: what comes before is a start."""
        self._shown = False
        self._lock = threading.Lock()

    def advance(self, count: int = 1) -> None:
        """Count what has been done, and say so if it is time to. 0 only says that the phase goes on."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if self.done and self._first is None:
                self._first = (now, self.done)
            if now >= self._next:
                self._next = now + self._every
                if not self._terminal:
                    self._every = min(2 * self._every, LOG_EVERY_S[1])
                self._say(self.line(now))

    def line(self, now: float) -> str:
        """Return what is told at a time of `time.monotonic`."""
        line = f"{self.what}: {self.done}" if self.unit else f"{self.what}:"
        if self.unit:
            line += f" of {self.total} {self.unit}" if self.total else f" {self.unit}"
        parts = [line if self.unit else f"{line} {_duration(now - self._started)}"]
        since, before = self._first or (now, self.done)
        if self.done > before and now > since:
            rate = (self.done - before) / (now - since)
            parts.append(f"{rate:.3g}/s" if rate >= 0.1 else f"{1 / rate:.3g} s each")
            if self.total > self.done:
                parts.append(f"about {_duration((self.total - self.done) / rate)} left")
        elif self.unit:
            parts.append(f"since {_duration(now - self._started)}")
        return ", ".join(filter(None, [*parts, self.note]))

    def end(self) -> None:
        """Say how long a phase took that was spoken of."""
        with self._lock:
            if self._shown:
                counted = f"{self.done} {self.unit} " if self.unit else ""
                self._say(f"{self.what}: {counted}in {_duration(time.monotonic() - self._started)}")
                if self._terminal:
                    _print("\n", self._stream)
                    clear_line(written=True)

    def _say(self, text: str) -> None:
        global _open
        self._shown = True
        _open = self._stream if self._terminal else None
        start, end = ("\r\033[K", "") if self._terminal else ("", "\n")
        _print(f"{start}{text}{end}", self._stream)


def clear_line(written: bool = False) -> None:
    """Make room for a line of another kind where a phase's line stands on the terminal; it is written again below.

    written: it is left, since the phase has ended.
    """
    global _open
    if _open is not None and not written:
        _print("\r\033[K", _open)
    _open = None


@contextmanager
def progress(what: str, total: int = 0, unit: str = "") -> Iterator[Advance]:
    """Tell of a phase while the body runs; it counts what is done by the function it gets."""
    shown = Progress(what, total, unit)
    try:
        yield shown.advance
    finally:
        shown.end()


@contextmanager
def elapsing(what: str) -> Iterator[None]:
    """Tell how long the body, whose parts cannot be counted, has taken."""
    shown = Progress(what)
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(TERMINAL_EVERY_S):
            shown.advance(0)

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        shown.end()


def _print(text: str, stream: TextIO) -> None:
    """Print text as it is; a console that is gone ends nothing."""
    with suppress(OSError):
        print(text, end="", file=stream, flush=True)


def _duration(seconds: float) -> str:
    """Return a number of seconds for people."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )
