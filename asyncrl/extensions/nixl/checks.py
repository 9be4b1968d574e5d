"""What NIXL asks of this machine before a run starts."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.nixl.agent import check_nixl


def check_here(config: Config, alone: bool) -> None:
    """Raise `ConfigError` where a run needs the library here and it is missing. alone: see `check_run`."""
    if alone:
        check_nixl()
