"""The hooks of a run, made from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.algo.curation.curricula import Factory
from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.config import Config
from asyncrl.extensions.table import rows


@dataclass(frozen=True, slots=True)
class LeaseContext:
    """What the factories of hooks are given."""

    config: Config
    curriculum: Factory | None
    """Makes the curriculum of the run's tasks; None where they have an order."""


def hooks_of(config: Config, curriculum: Factory | None) -> list[HookFactory]:
    """Return what makes the hooks of a run. curriculum: see `LeaseContext`."""
    context = LeaseContext(config, curriculum)
    return [row.load()(context) for row in rows("lease_hooks") if row.wanted(context)]
