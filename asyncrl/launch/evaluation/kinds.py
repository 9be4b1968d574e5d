"""The seam for what else `asyncrl eval` evaluates checkpoints on, by options of its own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from asyncrl.extensions.table import rows


class EvaluationKind:
    """Evaluates checkpoints where one of its options asks for it. args: those of `asyncrl eval`."""

    asked_by: ClassVar[Mapping[str, str]] = {}
    """The arguments one of which asks for it, each as a message has it, such as `{"on": "--on SET"}`."""
    about: ClassVar[str] = ""
    """What the command's description says of it."""
    several: ClassVar[str] = ""
    """What is said where it is not asked for, and several checkpoints are given."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its options to `asyncrl eval`. Imports nothing heavy."""

    def check(self, args: argparse.Namespace) -> None:
        """Refuse its options where they do not go with what is asked for. Raises `ConfigError`."""

    def run(self, args: argparse.Namespace) -> int:
        """Evaluate the checkpoints, which are folders of this machine now; return the exit code.

        Raises `ConfigError` and what ends an evaluation.
        """
        raise NotImplementedError

    def asked(self, args: argparse.Namespace) -> int:
        """Return how many of the arguments are given that ask for it."""
        return sum(bool(getattr(args, name)) for name in self.asked_by)


def evaluation_kinds() -> list[EvaluationKind]:
    """Return all of them."""
    return [row.load()() for row in rows("evaluation_kinds")]
