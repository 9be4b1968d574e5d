"""What is wrong with one engine, as a client of it sees it: what it fails with, how often, since when. Pure."""

from __future__ import annotations

from typing import Any

FORGET_S = 15.0
"""A probe that is answered ends a trouble whose last failure is this long ago: requests are repeated more often."""
MAX_ERROR = 500


class EngineTrouble:
    """Counts what has failed since an engine last served a request. Times in seconds on one clock."""

    def __init__(self) -> None:
        self.failures = 0
        self.garbage = False
        """Whether it has answered, with what is no answer; an engine that is away does not answer."""
        self._error = ""
        self._since = self._last = 0.0

    def failed(self, now: float, error: BaseException, garbage: bool) -> None:
        """Record a request, or a probe, that came to nothing."""
        if not self.failures:
            self._since = now
        self.failures += 1
        self._last = now
        if garbage or not self.garbage:
            # What it has answered says more than that it is away now.
            self.garbage, self._error = garbage, str(error)[:MAX_ERROR]

    def served(self) -> None:
        """Record that a request was answered."""
        self.failures, self.garbage = 0, False

    def probed(self, now: float) -> None:
        """Record that a probe was answered, which says nothing about the answers to requests."""
        if not self.garbage and now - self._last > FORGET_S:
            self.served()

    def described(self, now: float) -> dict[str, Any] | None:
        """Return `{garbage, failures, for_s, error}` for a status page; None where nothing is wrong."""
        if not self.failures:
            return None
        return {
            "garbage": self.garbage,
            "failures": self.failures,
            "for_s": round(now - self._since, 1),
            "error": self._error,
        }
