"""Which rows `[sft]` and `[data]` name. Loads no torch: a launcher checks them before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.config import Config
from asyncrl.config_sections import SCRIPTED, TRAINED_ON, DataSource, Sources
from asyncrl.errors import ConfigError
from asyncrl.rows.known_sets import known_set, set_of
from asyncrl.rows.source import read_rows
from asyncrl.train.demonstrations import Demonstration
from asyncrl.train.supervised.conversations import Conversations
from asyncrl.train.supervised.episodes import is_run


class SeveralRows:
    """The conversations of several sources, one after the other."""

    def __init__(self, parts: Sequence[Conversations]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[tuple[str, Demonstration]]:
        for part in self._parts:
            yield from part

    def first(self) -> list[Demonstration]:
        """Return the first conversation of each source. Raises `InputError`."""
        return [part.first() for part in self._parts]


def run_folder(config: Config) -> Path | None:
    """Return the run whose episodes are to be learned from, None where rows are."""
    data = config.sft.data
    path = Path(data) if isinstance(data, str) and data else None
    return path if path is not None and is_run(path) else None


def chosen_rows(config: Config) -> SeveralRows:
    """Return the rows to learn from. Raises `ConfigError` and `InputError`."""
    data = config.sft.data or TRAINED_ON
    key = "data.train" if data == TRAINED_ON else "sft.data"
    sources = config.data.train if data == TRAINED_ON else data
    if not sources:
        raise ConfigError(
            "data.train: must name the rows to learn from (a file, a folder or a data set of the hub), or sft.data must"
        )
    return _rows(config, sources, key, config.sft.min_reward)


def heldout_rows(config: Config) -> SeveralRows | None:
    """Return the held-out rows whose loss is measured, None without any."""
    if not config.data.heldout or not config.sft.heldout_rows or config.sft.data == SCRIPTED:
        return None
    return _rows(config, config.data.heldout, "data.heldout", None)


def _rows(config: Config, sources: Sources, key: str, min_reward: float | None) -> SeveralRows:
    listed: Sequence[str | DataSource] = sources if isinstance(sources, list) else [sources]
    known = known_set(config.data.set or set_of(sources))
    sft, data = config.sft, config.data
    prompt = sft.prompt or data.prompt or (known.prompt if known else "")
    system = data.system if data.system is not None else known.system if known else ""
    split = "heldout" if key == "data.heldout" else None
    return SeveralRows(
        [
            Conversations(
                read_rows(source, split=split and "test", key=key), prompt, sft.completion, system, min_reward
            )
            for source in listed
        ]
    )
