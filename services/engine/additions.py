"""What extensions add to a vLLM server that starts: arguments and variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from asyncrl.config import Config
from asyncrl.extensions.table import rows

MOST_ADAPTERS, MOST_LOADED = "--max-loras", "--max-cpu-loras"
"""vLLM's arguments: adapters that are decoded at once, and those that stay loaded on the host."""


@dataclass(frozen=True, slots=True)
class Addition:
    """What one extension adds."""

    arguments: tuple[str, ...] = ()
    """Arguments of `vllm serve`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the server's environment."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Arguments whose numbers are added up where several extensions give them, such as `MOST_ADAPTERS`."""


def additions(config: Config, publishes: bool) -> tuple[Addition, ...]:
    """Return what the extensions add to an engine of a run. Raises `ConfigError` for what cannot be had here.

    publishes: whether the run brings it new weights; an engine of an evaluation has its model alone.
    """
    return tuple(row.load()(config, publishes) for row in rows("engine_additions") if row.wanted(config))


def added_arguments(added: Sequence[Addition]) -> list[str]:
    """Return the arguments of all additions, each number once: their sum."""
    total: Counter[str] = Counter()
    for one in added:
        total.update(one.numbers)
    numbers = [word for name, number in total.items() for word in (name, str(number))]
    return [argument for one in added for argument in one.arguments] + numbers
