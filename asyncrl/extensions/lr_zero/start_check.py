"""`asyncrl train --check-lr-zero`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError
from asyncrl.launch.checks.start_check import StartCheck

if TYPE_CHECKING:
    from asyncrl.config import Config


class NothingMoves(StartCheck):
    """Trains at learning rate 0, and says what stayed as it was."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `StartCheck`."""
        parser.add_argument(
            "--check-lr-zero",
            action="store_true",
            help="train ten steps at learning rate 0, and say whether ratios, log-probabilities, weights and reward "
            "stay as they are; exit code 1 if one does not",
        )

    def settings(self, args: argparse.Namespace, overrides: Sequence[str]) -> Sequence[str]:
        """See `StartCheck`."""
        if not args.check_lr_zero:
            return overrides
        if args.resume is not None:
            raise ConfigError("--check-lr-zero: is a run of its own, and cannot be combined with --resume")
        from asyncrl.extensions.lr_zero.verdicts import SETTINGS

        return [*SETTINGS, *overrides, "train.learning_rate=0.0"]

    def check(self, args: argparse.Namespace, config: Config, alone: bool) -> Config:
        """See `StartCheck`."""
        return config

    def after(self, args: argparse.Namespace, config: Config, model: str, folder: Path) -> int:
        """See `StartCheck`."""
        return _check(config, model, folder) if args.check_lr_zero else 0


def _check(config: Config, model: str, path: Path) -> int:
    """Print what stayed as it was in a run at learning rate 0; return 1 if anything did not."""
    from asyncrl.extensions.lr_zero.verdicts import changed_tensors, verdicts, weights_of
    from asyncrl.run.checkpoints import complete_checkpoints
    from asyncrl.run.metrics import read_metrics

    kept = complete_checkpoints(path / "checkpoints")
    changed = changed_tensors(weights_of(Path(model)), weights_of(kept[0][1])) if kept else None
    found = verdicts(read_metrics(path), config.model.dtype, changed)
    for verdict in found:
        state = {True: "held", False: "FAILED", None: "unknown"}[verdict.held]
        print(f"{state:8s}{verdict.what}: {verdict.numbers}")
    return 1 if any(verdict.held is False for verdict in found) else 0
