"""The seam for what is checked last before a run starts, when its recipe and its machines are known to be right."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from asyncrl.extensions.table import rows

if TYPE_CHECKING:
    from asyncrl.config import Config


class StartCheck:
    """Refuses a run, or settles what its recipe leaves open. args: those of `asyncrl train`."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options of its own to `asyncrl train`. Imports nothing heavy."""

    def check(self, args: argparse.Namespace, config: Config, alone: bool) -> Config:
        """Return the configuration to start with. alone: whether the run is on this machine only.

        Raises `ConfigError`.
        """
        raise NotImplementedError


def start_checks() -> Iterator[StartCheck]:
    """Yield all of them, in the order in which they are asked."""
    for row in rows("start_checks"):
        yield row.load()()
