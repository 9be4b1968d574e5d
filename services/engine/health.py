"""What is known of one engine's health. Times are given, so that decisions can be tested without waiting."""

from __future__ import annotations

from asyncrl.services.engine.placement import Health

DEAD_AFTER_S = 10.0
"""Without any sign of life for this long an engine is dead."""
REFUSALS_TO_DEAD = 3
"""So many refused connections in a row are enough: nobody listens there."""
CATCH_UP_GRACE_S = 1.0
"""Engines commit new weights one after another; one that is behind for longer has missed them."""


class EngineHealth:
    """Turns answers, failures and probes into a `Health`. Times in seconds on one clock."""

    def __init__(self, now: float) -> None:
        self.version = -1
        """Policy version it was last seen to serve; -1 before the first sign."""
        self._alive = now
        self._failed = False
        self._refusals = 0

    def answered(self, now: float, version: int) -> None:
        """It served a request or a probe at `version`."""
        self._alive, self._failed, self._refusals = now, False, 0
        self.version = max(version, 0)

    def failed(self, refused: bool) -> None:
        """A request or probe got no answer; `refused` when nobody listened."""
        self._failed = True
        self._refusals = self._refusals + 1 if refused else self._refusals

    def health(self, now: float, newest: int = -1, newest_since: float = 0.0) -> Health:
        """What to think of it at `now`, when some engine has served version `newest` since `newest_since`."""
        if self._failed:
            gone = self._refusals >= REFUSALS_TO_DEAD or now - self._alive >= DEAD_AFTER_S
            return Health.DEAD if gone else Health.SUSPECT
        if 0 <= self.version < newest and now - newest_since >= CATCH_UP_GRACE_S:
            return Health.CATCHING_UP
        return Health.HEALTHY
