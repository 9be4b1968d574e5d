"""Which rows `[sft]` and `[data]` name. Loads no torch: a launcher checks them before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from asyncrl.config import Config
from asyncrl.config_sections import IMITATES, SCRIPTED, TRAINED_ON
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.conversations import Conversations
from asyncrl.extensions.supervised.demonstrations import Demonstration
from asyncrl.extensions.supervised.episodes import is_run
from asyncrl.extensions.supervised.pairs import Pair, Pairs
from asyncrl.extensions.supervised.verdicts import Verdict, Verdicts
from asyncrl.rows.data import Data, Part, open_data

T = TypeVar("T", Demonstration, Pair, Verdict)


class SeveralRows(Generic[T]):
    """The conversations of several sources, pairs of them or verdicts on them, one after the other."""

    def __init__(self, parts: Sequence[Conversations] | Sequence[Pairs] | Sequence[Verdicts]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[tuple[str, T]]:
        for part in self._parts:
            yield from part  # type: ignore[misc]

    def check(self) -> None:
        """Make the first conversation of each source. Raises `InputError`."""
        for part in self._parts:
            part.first()


def run_folder(config: Config) -> Path | None:
    """Return the run whose episodes are to be learned from, None where rows are."""
    data = config.sft.data
    path = Path(data) if isinstance(data, str) and data else None
    if path is None or not is_run(path):
        return None
    if config.sft.objective not in IMITATES:
        raise ConfigError(
            f"sft.objective: must be one of {', '.join(IMITATES)} for the episodes of a run, got "
            f"{config.sft.objective!r}"
        )
    return path


def learns_from_rows(config: Config) -> bool:
    """True where rows of a data set are to be learned from, not the episodes of a run or of a scripted expert."""
    return config.sft.data != SCRIPTED and run_folder(config) is None


def open_rows(config: Config) -> tuple[SeveralRows[Any], SeveralRows[Any] | None]:
    """Return the rows to learn from, and the held-out ones, None without any. For `learns_from_rows`.

    Raises `ConfigError` and `InputError` for rows that are not there or cannot be read.
    """
    sft, data = config.sft, config.data
    if sft.data in ("", TRAINED_ON):
        if not (data.train or data.set):
            raise ConfigError(
                "data.train: must name the rows to learn from (a file, a folder or a data set of the hub), or sft.data "
                "must"
            )
        opened = open_data(
            data.model_copy(update={"prompt": sft.prompt} if sft.prompt else {}), config.model.path
        )
    else:
        opened = _opened_apart(config)
    heldout = opened.heldout if config.sft.heldout_rows else []
    return _rows(config, opened.train), _rows(config, heldout) if heldout else None


def _opened_apart(config: Config) -> Data:
    """Return the rows of `sft.data`, whose errors name that key."""
    own = {"train": config.sft.data, "heldout": "", "heldout_share": 0.0, "set": "", "limit": 0, "answer": ""}
    if config.sft.prompt:
        own["prompt"] = config.sft.prompt
    try:
        return open_data(config.data.model_copy(update=own), config.model.path)
    except (ConfigError, InputError) as error:
        text = str(error).replace("data.train", "sft.data").replace("data.prompt", "sft.prompt")
        raise type(error)(text) from error


def _rows(config: Config, parts: Sequence[Part]) -> SeveralRows[Any]:
    sft = config.sft
    if sft.objective == "kto":
        return SeveralRows[Verdict]([Verdicts(part, sft.completion) for part in parts])
    if sft.objective not in IMITATES:
        return SeveralRows[Pair]([Pairs(part, sft.chosen, sft.rejected) for part in parts])
    return SeveralRows[Demonstration]([Conversations(part, sft.completion, sft.min_reward) for part in parts])
