"""The hooks of a run, made from its configuration."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.buffer.lease_hooks import HookFactory
from asyncrl.config import Config
from asyncrl.extensions.table import rows


@dataclass(frozen=True, slots=True)
class LeaseContext:
    """What the factories of hooks are given."""

    config: Config
    planned: bool = True
    """Whether the tasks come by the plan of the recipe (`asyncrl/tasks/plans.py`); else in an order of their own."""


def hooks_of(config: Config, planned: bool = True) -> list[HookFactory]:
    """Return what makes the hooks of a run. planned: see `LeaseContext`. Raises `ConfigError`."""
    context = LeaseContext(config, planned)
    return [row.load()(context) for row in rows("lease_hooks") if row.wanted(context)]
