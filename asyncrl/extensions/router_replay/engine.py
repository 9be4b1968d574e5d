"""What an engine is started with that records experts."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.services.engine.additions import Addition


def recording(config: Config, publishes: bool) -> Addition:
    """Return what has the engine report the experts of each token."""
    return Addition(("--enable-return-routed-experts",), {"ASYNCRL_RECORD_EXPERTS": "1"})
