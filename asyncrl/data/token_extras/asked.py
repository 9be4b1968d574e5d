"""What a run asks engines to report besides tokens."""

from __future__ import annotations

from typing import Any

from asyncrl.config import Config
from asyncrl.types import COMMITMENTS


def asked_of(config: Config) -> dict[str, Any]:
    """Return what every `GenerateRequest` of a run has as extras, besides those of its context."""
    return {COMMITMENTS: True} if config.train.commitments else {}
