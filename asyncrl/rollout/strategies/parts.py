"""What a worker has for strategies to be made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from asyncrl.algo.settings import needed, resolve_settings
from asyncrl.config import Config
from asyncrl.generation import Generator
from asyncrl.rollout.group_reward import GroupReward
from asyncrl.rollout.player import EpisodePlayer
from asyncrl.types import Group, Lease, Message


class SlotSource(Protocol):
    """The part of a further policy's buffer that a worker uses."""

    async def lease(self, worker: str, wait_s: float) -> Lease | None: ...
    async def renew(self, lease_id: str) -> float: ...
    async def release(self, lease_id: str) -> object: ...
    async def put(self, group: Group) -> object: ...
    async def status(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class FurtherPolicy:
    """A policy besides the main one: its agents, where it samples, and where its trajectories go (None: nowhere)."""

    name: str
    agents: frozenset[str]
    generator: Generator
    buffer: SlotSource | None = None


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What a worker has, with the configuration of its run."""

    config: Config
    engines: Generator
    """Where the main policy samples."""
    encode: Callable[[Message], np.ndarray]
    """Returns the ids of an assistant message. Raises `ConfigError` or `InputError` for what it cannot write."""
    make_player: Callable[[float], EpisodePlayer]
    """Returns a player that samples at a temperature."""
    policies: Sequence[FurtherPolicy] = ()
    elsewhere: bool = False
    """Whether the episodes are played elsewhere (`asyncrl.rollout.elsewhere`)."""
    rewards: Sequence[GroupReward] = ()
    """What scores the episodes of a group together."""

    @property
    def needs(self) -> frozenset[str]:
        """What the objective needs of rollouts and trainer (`asyncrl.algo.needs`)."""
        return needed(resolve_settings(self.config.algo))

    @property
    def renew_every_s(self) -> float:
        """Seconds between two renewals of a lease."""
        return self.config.rollout.lease_s / 3
