"""The hooks that the settings of a ledger ask for. They come after those that it is given."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.buffer.hooks.admission import Admission
from asyncrl.buffer.hooks.restarts import Restarts
from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.buffer.ledger_settings import LedgerSettings

HOOKS: tuple[tuple[Callable[[LedgerSettings], bool], HookFactory], ...] = (
    (lambda settings: settings.over_provision == "auto", Admission),
    (lambda settings: not settings.recycle, Restarts),
)
"""Whether settings ask for a hook, and what makes it."""


def hooks_of_settings(settings: LedgerSettings) -> list[HookFactory]:
    """Return what makes the hooks that are asked for."""
    return [make for asked, make in HOOKS if asked(settings)]
