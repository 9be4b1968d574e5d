"""Asks before a run starts whether its memory suffices. Imports nothing heavy before it is asked."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from asyncrl.launch.checks.start_check import StartCheck

if TYPE_CHECKING:
    from asyncrl.config import Config


class MemoryCheck(StartCheck):
    """Looks at the memory of this machine, where the run is on it alone."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `StartCheck`."""
        parser.add_argument(
            "--ignore-memory",
            action="store_true",
            help="start even where what `asyncrl plan memory` predicts does not fit this machine",
        )

    def check(self, args: argparse.Namespace, config: Config, alone: bool) -> Config:
        """See `StartCheck`."""
        from asyncrl.extensions.planning.refuse import check_memory

        # What is predicted are the GPUs of one machine.
        return check_memory(config, even_so=args.ignore_memory) if alone else config
