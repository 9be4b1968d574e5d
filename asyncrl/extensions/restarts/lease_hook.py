"""Groups that are unfinished at a commit start over: `buffer.recycle = false`."""

from __future__ import annotations

from asyncrl.buffer.lease_hooks import LeaseHook
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store


class Restarts(LeaseHook):
    """Plans the tasks of unfinished groups again, and counts them."""

    def __init__(self, store: Store, settings: LedgerSettings) -> None:
        del settings
        self._store = store

    def on_commit(self, version: int) -> None:
        """See `LeaseHook`."""
        again = self._store.execute("UPDATE tasks SET state = 'pending' WHERE state = 'leased'").rowcount
        self._store.set_fact("restarted", self._store.fact("restarted") + again)
