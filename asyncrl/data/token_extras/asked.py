"""What a run asks engines to report besides tokens."""

from __future__ import annotations

from typing import Any

from asyncrl.config import Config
from asyncrl.extensions.table import rows


def asked_of(config: Config) -> dict[str, Any]:
    """Return what every `GenerateRequest` of a run has as extras, besides those of its context: the kinds whose row
    says which settings ask for them."""
    return {row.name: True for row in rows("token_extras") if row.asked and row.wanted(config)}
