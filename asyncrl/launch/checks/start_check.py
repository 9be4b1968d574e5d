"""The seam for what is checked last before a run starts, when its recipe and its machines are known to be right, and
for what is looked at when it has ended."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.extensions.table import rows

if TYPE_CHECKING:
    from asyncrl.config import Config


class StartCheck:
    """Refuses a run, or settles what its recipe leaves open. args: those of `asyncrl train`."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options of its own to `asyncrl train`. Imports nothing heavy."""

    def settings(self, args: argparse.Namespace, overrides: Sequence[str]) -> Sequence[str]:
        """Return the settings `key=value` of the command line, with those that its options stand for.

        Raises `ConfigError` for options that do not go together.
        """
        return overrides

    def check(self, args: argparse.Namespace, config: Config, alone: bool) -> Config:
        """Return the configuration to start with. alone: whether the run is on this machine only.

        Raises `ConfigError`.
        """
        raise NotImplementedError

    def after(self, args: argparse.Namespace, config: Config, model: str, folder: Path) -> int:
        """Look at a run that has ended; return the command's exit code, 0 where all is as it should be.

        model: that it started from. folder: the run's.
        """
        return 0


def start_checks() -> Iterator[StartCheck]:
    """Yield all of them, in the order in which they are asked."""
    for row in rows("start_checks"):
        yield row.load()()
