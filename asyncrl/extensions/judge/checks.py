"""What a judge asks of this machine before a run starts."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.judge.functions import Functions
from asyncrl.extensions.judge.settings import JudgeConfig


def check_functions(config: Config, alone: bool) -> None:
    """Import the functions of components. alone: see `check_run`. Raises `ConfigError`."""
    Functions(config.section(JudgeConfig).functions).close()
