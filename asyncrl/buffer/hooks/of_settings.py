"""The hooks that the settings of a ledger ask for. They come after those that it is given."""

from __future__ import annotations

from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.extensions.table import rows


def hooks_of_settings(settings: LedgerSettings) -> list[HookFactory]:
    """Return what makes the hooks that are asked for."""
    return [row.load() for row in rows("ledger_hooks") if row.wanted(settings)]
