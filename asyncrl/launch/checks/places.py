"""What is asked of a recipe by the machines that a run has."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.extensions.table import rows


def check_places(config: Config, alone: bool) -> None:
    """Refuse settings that do not go with the machines of the run. alone: whether it has this one only.

    Raises `ConfigError`.
    """
    for row in rows("machine_checks"):
        row.load()(config, alone)
