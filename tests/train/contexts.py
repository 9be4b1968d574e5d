"""What factories of callbacks are given, for a trainer in a test."""

from __future__ import annotations

from pathlib import Path

from asyncrl.credentials import own_credentials
from asyncrl.train.arguments import TrainerArguments
from asyncrl.train.loop.callback_context import CallbackContext

NOWHERE = Path("/nonexistent")


def context(config, objective, engine, auxiliary=None, checkpointer=None, folder=NOWHERE, **more):
    """Return the context of a run whose other processes are nowhere."""
    given = TrainerArguments(
        folder=folder, model="m", buffer="", engines=[], weights_dir=folder, credentials=own_credentials(), **more
    )  # fmt: skip
    return CallbackContext(
        config=config, objective=objective, arguments=given, engine=engine, auxiliary=auxiliary,
        checkpointer=checkpointer,
    )  # fmt: skip
