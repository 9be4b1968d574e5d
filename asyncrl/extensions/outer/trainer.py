"""The trainer's part in an outer optimizer: who it is there."""

from __future__ import annotations

import uuid
from pathlib import Path

from asyncrl.config import Config
from asyncrl.credentials import Credentials
from asyncrl.extensions.outer.client import OuterClient
from asyncrl.extensions.outer.exchange import Outer, OuterExchange
from asyncrl.extensions.outer.settings import OuterConfig
from asyncrl.jsonfile import read_json, write_json
from asyncrl.train.loop.callback_context import CallbackContext

OUTER_RUN = "outer.json"
"""File of a run's folder with the id by which an outer optimizer knows the run."""


def exchanging(context: CallbackContext) -> Outer:
    """Return the callback of a run that trains one policy with others."""
    given = context.arguments
    return Outer(open_exchange(context.config, given.folder, given.credentials, context.first))


def open_exchange(config: Config, folder: Path, credentials: Credentials, first: bool) -> OuterExchange:
    """Return what the run does with others that train the same policy."""
    if not first:
        return OuterExchange(config, None)
    known = read_json(folder / OUTER_RUN)
    if known is None:
        known = {"run": uuid.uuid4().hex}
        write_json(folder / OUTER_RUN, known)
    settings = config.section(OuterConfig)
    return OuterExchange(
        config, OuterClient(settings, credentials.bearer("outer"), known["run"], folder.name)
    )
