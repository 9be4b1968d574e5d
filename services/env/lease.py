"""Renews the leases of a client's sessions on one environment service: all in one call, every third of their lease.

A session is renewed as long as it is referenced, however long the policy generates between two steps. When the client
dies, the service closes its sessions after the lease.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakValueDictionary

from asyncrl.errors import AsyncRLError

log = logging.getLogger("asyncrl.rollout")

RETRY_PAUSE_S = 1.0

Renew = Callable[[Sequence[str], float], Awaitable[Sequence[str]]]
"""Renews sessions within so many seconds; returns those that have ended. Raises `AsyncRLError`."""


class LeaseKeeper:
    """Renews the sessions it was given. One that is no longer referenced expires with its lease."""

    def __init__(self, renew: Renew, url: str) -> None:
        self.renew = renew
        self.url = url
        self._held: WeakValueDictionary[str, object] = WeakValueDictionary()
        self._lease_s = 0.0
        self._keeping: asyncio.Task[None] | None = None

    def hold(self, session_id: str, holder: object, lease_s: float) -> None:
        """Renew a session until `drop`, or until nothing refers to `holder`. `lease_s` is the service's."""
        self._held[session_id] = holder
        if self._keeping is not None and not self._keeping.done():
            if lease_s >= self._lease_s:
                return
            # Restarted for a shorter lease, for which the old pause could be too long.
            self._keeping.cancel()
        self._lease_s = lease_s
        self._keeping = asyncio.create_task(self._keep())

    def drop(self, session_id: str) -> None:
        """Stop renewing a session."""
        self._held.pop(session_id, None)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _keep(self) -> None:
        """Renew until no session is held."""
        every_s, failed = self._lease_s / 3, False
        while True:
            await asyncio.sleep(min(every_s / 4, RETRY_PAUSE_S) if failed else every_s)
            held = list(self._held)
            if not held:
                return
            start = time.monotonic()
            try:
                for session_id in await self.renew(held, max(every_s, RETRY_PAUSE_S)):
                    self.drop(session_id)
                failed = False
            except AsyncRLError as error:
                failed = True
                took_s = time.monotonic() - start
                log.warning(
                    "%s: %d sessions not renewed after %.1f s: %s", self.url, len(held), took_s, error
                )
