"""The rows of `[data]` as a run's tasks: read in their format, their answers checked by rewards."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.rewards.golds import gold_check
from asyncrl.rows.data import Data, open_data
from asyncrl.rows.formats import reader_of


def has_rows(config: Config) -> bool:
    """Whether the tasks are the rows of `[data]`."""
    return bool(config.data.set or config.data.train or config.data.heldout)


def rows_of(config: Config) -> Data:
    """Return the rows of `[data]`. Raises as `open_data` does."""
    return open_data(config.data, config.model.path, reader_of, gold_check)
