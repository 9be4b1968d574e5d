"""The health of one engine. Times are arguments, so that tests do not wait."""

from __future__ import annotations

from asyncrl.services.engine.placement import Health

APART_S, LONGEST_APART_S = 60.0, 3600.0
"""An engine that has answered with garbage counts as dead for so long, each time twice as long as before."""
DEAD_AFTER_S = 10.0
"""An engine that has not answered for this long is dead."""
REFUSALS_TO_DEAD = 3
"""So is one after this many refused connections in a row."""
CATCH_UP_GRACE_S = 1.0
"""Engines commit new weights one after another; one that is behind for longer has missed them."""


class EngineHealth:
    """Turns answers, failures and probes into a `Health`. Times in seconds on one clock."""

    def __init__(self, now: float) -> None:
        self.version = -1
        """Policy version that it last served; -1 before its first answer."""
        self._alive = now
        self._failed = False
        self._refusals = 0
        self._apart_until, self._apart_s = -1.0, APART_S

    def garbled(self, now: float) -> None:
        """Record that it answered with what is no answer; later ones that seem sound do not make up for it."""
        if not self.set_apart(now):
            self._apart_until = now + self._apart_s
            self._apart_s = min(2 * self._apart_s, LONGEST_APART_S)

    def set_apart(self, now: float) -> bool:
        """Return whether it is not to be used since it answered with garbage."""
        return now < self._apart_until

    def answered(self, now: float, version: int) -> None:
        """Record that it served a request or a probe at `version`."""
        self._alive, self._failed, self._refusals = now, False, 0
        self.version = max(version, 0)

    def failed(self, refused: bool) -> None:
        """Record a request or probe without an answer; `refused` if the connection was refused."""
        self._failed = True
        self._refusals = self._refusals + 1 if refused else self._refusals

    def health(self, now: float, newest: int = -1, newest_since: float = 0.0) -> Health:
        """Return its health at `now`, given that some engine has served version `newest` since `newest_since`."""
        if self.set_apart(now):
            return Health.DEAD
        if self._failed:
            gone = self._refusals >= REFUSALS_TO_DEAD or now - self._alive >= DEAD_AFTER_S
            return Health.DEAD if gone else Health.SUSPECT
        if 0 <= self.version < newest and now - newest_since >= CATCH_UP_GRACE_S:
            return Health.CATCHING_UP
        return Health.HEALTHY
