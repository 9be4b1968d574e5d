"""Room in the engines for past versions."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.league.members import most_members
from asyncrl.services.engine.additions import Addition


def past_versions(config: Config, publishes: bool) -> Addition:
    """Return what engines of a run with a population have in addition."""
    return Addition(adapters=most_members(config) if publishes else 0)
