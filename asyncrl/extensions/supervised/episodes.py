"""The episodes of a run as rows to learn from: the tokens that were sampled, as the run's Parquet files keep them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.demonstrations import Encoded
from asyncrl.types import Status

TABLES = "trajectories"
COLUMNS = ("token_ids", "loss_mask", "reward", "success", "status", "images")


def is_run(path: Path) -> bool:
    """True for the folder of a run that has recorded episodes."""
    return any((path / TABLES).glob("*.parquet"))


def episodes(run: Path, min_reward: float | None, max_length: int) -> Iterator[Encoded]:
    """Yield the finished episodes of a run, in the order in which it trained them.

    min_reward: the least reward; None takes those that succeeded. Episodes of more than `max_length` tokens, and those
    with images, are left out. Raises `InputError` for a file that cannot be read.
    """
    import pyarrow.parquet as pq

    for file in sorted((run / TABLES).glob("*.parquet")):
        try:
            rows: list[dict[str, Any]] = pq.read_table(file, columns=list(COLUMNS)).to_pylist()
        except (OSError, ValueError) as error:
            raise InputError(f"sft.data: {file}: cannot be read: {error}") from error
        for row in rows:
            if row["status"] != Status.FINISHED or row["images"] or len(row["token_ids"]) > max_length:
                continue
            kept = bool(row["success"]) if min_reward is None else (row["reward"] or 0.0) >= min_reward
            mask = np.asarray(row["loss_mask"], bool)
            if kept and mask.any():
                end = int(mask.nonzero()[0][-1]) + 1
                yield Encoded(np.asarray(row["token_ids"], np.int32)[:end], mask[:end], (), False, "")


def check_run(run: Path, model: str) -> None:
    """Refuse episodes of a model with another tokenizer, whose ids mean something else. Raises `ConfigError`."""
    from transformers import AutoTokenizer

    from asyncrl.run.checkpoints import complete_checkpoints

    saved = complete_checkpoints(run / "checkpoints")
    if not saved:
        raise ConfigError(f"sft.data: {run}: has no checkpoint, so its tokenizer is not known")
    theirs = AutoTokenizer.from_pretrained(str(saved[0][1])).get_vocab()
    if theirs != AutoTokenizer.from_pretrained(model).get_vocab():
        raise ConfigError(
            f"sft.data: {run}: its episodes were sampled by a model with another tokenizer than {model}"
        )
