"""What a rollout worker has, as those see it that judge what it plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.config import Config
from asyncrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What the factories of `episode_ends` and `group_rewards` are given."""

    config: Config
    beside: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the processes that the workers have for themselves, by role."""
    bearer: Callable[[str], str] = lambda service: ""
    """Returns the bearer token for services of a kind, "" for those that workers do not call."""
    tell: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]] | None = None
    """Tells a hook of the run's ledger something, by its route, and returns the answer; None without a buffer."""

    def address(self, role: str) -> str:
        """Return where such a process is. Raises `ConfigError` where the worker was not told."""
        if role not in self.beside:
            raise ConfigError(f"serve rollout: needs --beside {role}=URL, which the recipe asks for")
        return self.beside[role]
