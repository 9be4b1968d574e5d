"""What a run asks engines to report besides tokens."""

from __future__ import annotations

from typing import Any

from asyncrl.config import Config


def asked_of(config: Config) -> dict[str, Any]:
    """Return the fields of every `GenerateRequest` of a run that its extras need."""
    return {"commit": True} if config.train.commitments else {}
