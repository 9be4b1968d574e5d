"""The hooks of a run, made from its configuration."""

from __future__ import annotations

from functools import partial

from asyncrl.algo.curation.curricula import Factory
from asyncrl.buffer.hooks.opponents import Opponents
from asyncrl.buffer.hooks.proposals import Proposals
from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.config import Config


def hooks_of(config: Config, curriculum: Factory | None) -> list[HookFactory]:
    """Return what makes the hooks of a run. curriculum: makes the one of its tasks, None where they have an order."""
    hooks: list[HookFactory] = []
    if curriculum is not None:
        complete_age = config.train.replay_max_age if config.train.complete_groups else 0
        hooks.append(partial(Proposals, make=curriculum, complete_age=complete_age))
    if config.population is not None:
        hooks.append(partial(Opponents, population=config.population))
    return hooks
