"""The hooks that the settings of a ledger ask for. They come after those that it is given."""

from __future__ import annotations

from asyncrl.buffer.hooks.admission import Admission
from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.extensions.table import rows


def hooks_of_settings(settings: LedgerSettings) -> list[HookFactory]:
    """Return what makes the hooks that are asked for."""
    own: list[HookFactory] = [Admission] if settings.over_provision == "auto" else []
    return [*own, *(row.load() for row in rows("ledger_hooks") if row.wanted(settings))]
