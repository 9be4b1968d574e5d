"""Room in the engines for past versions."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.league.members import most_members
from asyncrl.services.engine.additions import MOST_ADAPTERS, MOST_LOADED, Addition


def past_versions(config: Config, publishes: bool) -> Addition:
    """Return what engines of a run with a population have in addition."""
    more = most_members(config)
    return Addition(numbers={MOST_ADAPTERS: more, MOST_LOADED: more}) if publishes else Addition()
