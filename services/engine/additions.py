"""What extensions add to a vLLM server that starts: arguments, variables, and room for adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.config import Config
from asyncrl.extensions.table import rows


@dataclass(frozen=True, slots=True)
class Addition:
    """What one extension adds."""

    arguments: tuple[str, ...] = ()
    """Arguments of `vllm serve`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the server's environment."""
    adapters: int = 0
    """Adapters that it serves beside the newest versions of those that are trained."""


def additions(config: Config, publishes: bool) -> tuple[Addition, ...]:
    """Return what the extensions add to an engine of a run. Raises `ConfigError` for what cannot be had here.

    publishes: whether the run brings it new weights; an engine of an evaluation has its model alone.
    """
    return tuple(row.load()(config, publishes) for row in rows("engine_additions") if row.wanted(config))
