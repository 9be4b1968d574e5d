"""What is known of an agent before a run starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.agents.gateway.agent_player import GRACE_S
from asyncrl.extensions.agents.harness.agent import HarnessAgent, load_any_agent
from asyncrl.types import Task


def check_agent(settings: dict[str, Any], task: Task, episode_timeout_s: float) -> None:
    """Check that an agent can be started: its function imported, or its program found; of a harness, installed, and
    `task` read, which may take it an episode's time but for the agent's own end."""
    agent = load_any_agent(settings)
    if isinstance(agent, HarnessAgent):
        agent.check(task, episode_timeout_s - GRACE_S)
    command, cwd = settings.get("command"), settings.get("cwd")
    if cwd and not Path(cwd).is_dir():
        raise ConfigError(f"env.config.cwd: there is no folder {cwd!r}")
    if command and not (shutil.which(command[0]) or (Path(cwd or ".") / command[0]).is_file()):
        raise ConfigError(f"env.config.command: there is no program {command[0]!r}")
