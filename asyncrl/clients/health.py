"""What is known of one engine's health. Times are given, so that decisions can be tested without waiting."""

from __future__ import annotations

from asyncrl.clients.placement import Health

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
        """Newest policy version it was seen to serve; -1 before the first sign."""
        self._alive = now
        self._failed = False
        self._refusals = 0
        self._behind_since: float | None = None

    def answered(self, now: float, version: int, newest: int) -> None:
        """It served a request or a probe at `version`; `newest` is the newest version any engine serves."""
        returned = self.health(now) is Health.DEAD
        self._alive, self._failed, self._refusals = now, False, 0
        self.version = max(version, 0)
        if version >= newest:
            self._behind_since = None
        elif self._behind_since is None:
            # One that comes back from the dead gets no grace: it has surely missed the update.
            self._behind_since = now - CATCH_UP_GRACE_S if returned else now

    def failed(self, refused: bool) -> None:
        """A request or probe got no answer; `refused` when nobody listened."""
        self._failed = True
        self._refusals = self._refusals + 1 if refused else self._refusals

    def health(self, now: float) -> Health:
        """What to think of it at `now`."""
        if self._failed:
            gone = self._refusals >= REFUSALS_TO_DEAD or now - self._alive >= DEAD_AFTER_S
            return Health.DEAD if gone else Health.SUSPECT
        if self._behind_since is not None and now - self._behind_since >= CATCH_UP_GRACE_S:
            return Health.CATCHING_UP
        return Health.HEALTHY
