"""Combinations of settings that nobody has run."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.conflicts.registry import FEATURES


def untried(config: Config) -> list[str]:
    """Return the combinations of a configuration that nobody has run: no reason is known why they should not work."""
    return [f"{pair} has not been tried" for one in FEATURES for pair in one.untried(config)]
