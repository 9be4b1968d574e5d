"""Logs an outage once when it begins and once when it is over, with a count, however many calls fail meanwhile."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from asyncrl.clock import now_s
from asyncrl.disk import FAULTS, outage
from asyncrl.errors import OutageError

EVERY_S = 10.0
"""Outages that begin sooner after the last one that was told are counted with the next that is."""


class OutageLog:
    """The outages of calls of one kind. what: what they do, such as "leases"; an outage ends when no call is
    waiting."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self.what = log, what
        self.waiting = 0
        """Calls that have failed and are repeated."""
        self.failures = 0
        """Failed attempts since the last line that told of an end."""
        self._began = 0.0
        self._logged_s = float("-inf")
        self._logged = False
        self._again = False
        """Whether the last time of `lived_through` failed."""

    def failed(self, error: BaseException, again: bool) -> None:
        """Note a failed attempt; `again` where this call has failed before."""
        self.failures += 1
        if not again:
            self.waiting += 1
        if again or self.waiting > 1:
            return
        self._began = now_s()
        self._logged = self._began - self._logged_s >= EVERY_S
        if self._logged:
            self._logged_s = self._began
            self._log.warning("%s: %s; trying again until that ends", self.what, error)

    @contextlib.contextmanager
    def lived_through(self) -> Iterator[None]:
        """Note an outage of this machine that ends what is done inside (`asyncrl.disk.outage`), in place of raising it:
        for work that is done again and again, where the next time makes up for this one. Not for two at once."""
        try:
            yield
        except (OutageError, *FAULTS) as error:
            if outage(error) is None:
                raise
            self.failed(error, self._again)
            self._again = True
            return
        if self._again:
            self._again = False
            self.ended()

    def ended(self, worked: bool = True) -> None:
        """Note that a call that had failed has worked, or is given up."""
        self.waiting -= 1
        if self.waiting or not self._logged:
            return
        how = "again" if worked else "given up"
        self._log.warning(
            "%s: %s after %.0f s, in which %d attempts failed",
            self.what,
            how,
            now_s() - self._began,
            self.failures,
        )
        self.failures, self._logged = 0, False
