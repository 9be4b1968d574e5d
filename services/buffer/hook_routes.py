"""Routes for hooks of the ledger: what they are told from outside its transactions. Each extension adds its own."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from asyncrl.buffer.ledger import Ledger
from asyncrl.extensions.table import rows

HOOK_ROLES = {call: set(roles) for row in rows("buffer_routes") for call, roles in row.roles.items()}
"""Which roles may call what, besides the launcher."""


def add_hook_routes(app: FastAPI, ledger: Ledger, changed: Callable[[], None]) -> None:
    """Add the routes; `changed` lets those look again who wait for a lease or a batch."""
    for row in rows("buffer_routes"):
        row.load()(app, ledger, changed)
