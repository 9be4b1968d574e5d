"""The health of one engine. Times are arguments, so that tests do not wait."""

from __future__ import annotations

from asyncrl.services.engine.placement import Health

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
        if self._failed:
            gone = self._refusals >= REFUSALS_TO_DEAD or now - self._alive >= DEAD_AFTER_S
            return Health.DEAD if gone else Health.SUSPECT
        if 0 <= self.version < newest and now - newest_since >= CATCH_UP_GRACE_S:
            return Health.CATCHING_UP
        return Health.HEALTHY
