"""Episodes that no chat player plays: those of an `env.name` that a row of the seam `players` names.

env.name -> row -> PlayedElsewhere: checked before a run -> in each worker its players -> EpisodePlayer
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_formats import TurnFormat
from asyncrl.config import Config
from asyncrl.extensions.table import by_name, rows
from asyncrl.generation import Generator
from asyncrl.rollout.episode import EpisodeEnd
from asyncrl.rollout.player import EpisodePlayer
from asyncrl.types import Task

PROGRAMS = next((row.name for row in rows("players") if row.of_programs), "")
"""The `env.name` whose episodes programs play; "" without one."""


class Engines(Generator, Protocol):
    """A router over engines. It ends a request whose `generate` is cancelled."""

    async def context_limit(self) -> int:
        """Longest context with its answer that the engines take, in tokens; 0 while unknown."""
        ...

    def hold(self, session: str, num_tokens: int, ttl_s: float) -> None:
        """Announce that a session's context of `num_tokens` is needed again within `ttl_s`; 0: no longer needed."""
        ...


def _no_token(service: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class PlayerParts:
    """What a process has for players to be made of."""

    config: Config
    engines: Engines
    renderer: ChatRenderer
    turns: TurnFormat
    bearer: Callable[[str], str] = _no_token
    """Returns the bearer token for services of a kind, "" for those that it does not call."""
    ends: Sequence[EpisodeEnd] = ()


class Players(Protocol):
    """What plays a worker's episodes in place of its chat player."""

    def player(self, temperature: float, seed: int | None) -> EpisodePlayer:
        """Return a player with the recipe's limits, whose turns are sampled so."""
        ...

    def limit(self, room: int, running: Sequence[str]) -> int:
        """Return how many groups may run now. room: for how many the engines have room. running: the ids of the tasks
        whose groups run."""
        ...

    async def start(self) -> None:
        """Make ready what players need."""
        ...

    async def close(self) -> None: ...


class PlayedElsewhere(Protocol):
    """How the episodes of one `env.name` are played. The path of a row leads to a function that returns it."""

    def players(self, parts: PlayerParts) -> Players:
        """Return the players of a process. Raises `ConfigError` for settings that are wrong."""
        ...

    def check(self, settings: dict[str, Any], task: Task, episode_timeout_s: float) -> None:
        """Check before a run that what plays can be started, and reads `task` in an episode's time.

        settings: `env.config`. Raises `ConfigError`, `UnavailableError`.
        """
        ...

    def check_evaluation(self, settings: dict[str, Any]) -> None:
        """Refuse what plays no evaluation. Raises `ConfigError`."""
        ...

    def check_environment(self, given: argparse.Namespace) -> int:
        """Run `asyncrl env check` of that name, with the arguments it parsed; return its exit code."""
        ...


def played_elsewhere(name: str) -> PlayedElsewhere | None:
    """Return how the episodes of an `env.name` are played; None where the worker plays them. Raises `ConfigError`."""
    row = by_name("players").get(name)
    return None if row is None else cast(PlayedElsewhere, row.load()())
