"""The over-provision that follows the trainer: `buffer.over_provision = "auto"`."""

from __future__ import annotations

from asyncrl.buffer.automatic_admission import AutomaticAdmission
from asyncrl.buffer.counts import in_state
from asyncrl.buffer.lease_hooks import LeaseHook
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store

FACT = "over_provision"


class Admission(LeaseHook):
    """Keeps what `AutomaticAdmission` finds as a fact of the ledger, from which its slots are counted."""

    def __init__(self, store: Store, settings: LedgerSettings) -> None:
        self._store = store
        self._found = AutomaticAdmission(settings.max_over_provision, settings.groups_per_step)

    def on_open(self, changed: bool) -> None:
        """See `LeaseHook`."""
        if changed or self._store.fact(FACT) < 0:
            self._store.set_fact(FACT, self._found.initial())

    def on_take(self, step: int, waited: bool, now_s: float) -> None:
        """See `LeaseHook`."""
        left, _ = in_state(self._store, "ready")
        (tokens,) = self._store.row("SELECT SUM(tokens) FROM tasks WHERE state = 'taken' AND step = ?", step)
        current = self._store.fact(FACT)
        self._store.set_fact(FACT, self._found.after_batch(current, waited, left, tokens, now_s))
