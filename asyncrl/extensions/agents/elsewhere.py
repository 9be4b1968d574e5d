"""What the core asks of agents, before a run and in a worker. Nothing is imported that is not asked for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from asyncrl.errors import ConfigError
from asyncrl.rollout.elsewhere import PlayerParts
from asyncrl.types import Task

if TYPE_CHECKING:
    from asyncrl.extensions.agents.players import Agents


class AgentEpisodes:
    """Implements `rollout.elsewhere.PlayedElsewhere`."""

    def players(self, parts: PlayerParts) -> Agents:
        """See `PlayedElsewhere`."""
        from asyncrl.extensions.agents.players import Agents

        token = parts.bearer("gateway")
        return Agents(parts.config, parts.engines, parts.renderer, parts.turns, token, parts.ends)

    def check(self, settings: dict[str, Any], task: Task, episode_timeout_s: float) -> None:
        """See `PlayedElsewhere`."""
        from asyncrl.extensions.agents.checks import check_agent

        check_agent(settings, task, episode_timeout_s)

    def check_evaluation(self, settings: dict[str, Any]) -> None:
        """See `PlayedElsewhere`."""
        if settings.get("offered"):
            raise ConfigError(
                "env.config.offered: these agents ask a joined gateway for training's episodes; to evaluate, name an "
                "agent that a worker can start, or play with a key without an episode (docs/gateway.md)"
            )

    def check_environment(self, given: argparse.Namespace) -> int:
        """See `PlayedElsewhere`."""
        from asyncrl.extensions.agents.program_check import check_program

        return check_program(given)
