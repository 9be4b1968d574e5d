"""Rows of a request as the loss reads them: which targets are scored, and what stands beside each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.losses import Loss
from asyncrl.extensions.tinker.wire import Datum, Input

TARGETS = "target_tokens"


@dataclass(frozen=True, slots=True)
class Row:
    """One row: N tokens that are read, and M targets, each scored after one of them."""

    tokens: np.ndarray
    """[N] int64."""
    positions: np.ndarray
    """[M] int64: the token after which each target is scored."""
    targets: np.ndarray
    """[M] int64."""
    inputs: dict[str, np.ndarray]
    """By their names [M] float32."""
    cells: np.ndarray
    """[M] int64: where each log-probability stands in the answer, flat."""
    shape: tuple[int, ...]
    """Of the answer: [N], or [N,K] with several targets a token."""

    def answer(self, logp: np.ndarray) -> np.ndarray:
        """Return log-probabilities [M] in the answer's shape; 0 for a target that was not listed."""
        found = np.zeros(int(np.prod(self.shape)), np.float32)
        found[self.cells] = logp
        return found.reshape(self.shape)


def read_row(index: int, datum: Datum, loss: Loss, vocab_size: int, most_tokens: int) -> Row:
    """Return a datum as a row. Raises `InputError` naming the row and what is wrong with it.

    vocab_size: of the model. most_tokens: that it can read at once.
    """
    where, num = f"data[{index}]", len(datum.tokens)
    if not 1 <= num <= most_tokens:
        raise InputError(f"{where}.model_input: must have 1 to {most_tokens} tokens, got {num}")
    _check_ids(f"{where}.model_input", datum.tokens, vocab_size)
    targets = datum.inputs.get(TARGETS)
    if targets is None:
        raise InputError(f"{where}.{TARGETS}: must be given")
    if len(targets.shape) not in (1, 2) or targets.shape[0] != num:
        raise InputError(f"{where}.{TARGETS}: must be [{num}] or [{num}, K], got {list(targets.shape)}")
    given = {name: one for name, one in datum.inputs.items() if name != TARGETS}
    if missing := [name for name in loss.needs if name not in given]:
        raise InputError(f"{where}.{missing[0]}: the loss needs it")
    if unread := given.keys() - {*loss.needs, *loss.may_have}:
        raise InputError(f"{where}.{min(unread)}: the loss does not read it")
    for name, one in given.items():
        if one.shape != targets.shape:
            raise InputError(
                f"{where}.{name}: must be {list(targets.shape)} like {TARGETS}, got {list(one.shape)}"
            )
    ids = _dense(targets).astype(np.int64)
    dense = {name: _dense(one).astype(np.float32) for name, one in given.items()}
    for name, values in dense.items():
        if not np.isfinite(values).all():
            raise InputError(f"{where}.{name}: must be finite")
    cells = np.arange(ids.size)
    if targets.rows is not None:
        # What a sparse array does not list is 0: token 0, which counts where something beside it is not 0.
        listed = ids != 0
        for name in loss.needs:
            listed |= dense[name] != 0
        cells = np.flatnonzero(listed)
    _check_ids(f"{where}.{TARGETS}", ids[cells], vocab_size)
    width = targets.shape[1] if len(targets.shape) == 2 else 1
    return Row(
        datum.tokens,
        cells // width,
        ids[cells],
        {name: one[cells] for name, one in dense.items()},
        cells,
        targets.shape,
    )


def _dense(given: Input) -> np.ndarray:
    """Return all items, flat."""
    if given.rows is None or given.columns is None:
        return given.values
    found = np.zeros(given.shape, given.values.dtype)
    found[given.rows, given.columns] = given.values
    return found.reshape(-1)


def _check_ids(where: str, ids: np.ndarray, vocab_size: int) -> None:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise InputError(f"{where}: token ids must be from 0 to below {vocab_size}")


def batches(rows: Sequence[Row], most_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of rows that are computed together: padded, they have at most `most_tokens` tokens, or are one.

    Rows of like length come together. The division depends on the lengths alone.
    """
    batch: list[int] = []
    for index in sorted(range(len(rows)), key=lambda index: -len(rows[index].tokens)):
        longest = len(rows[batch[0]].tokens) if batch else 0
        if batch and longest * (len(batch) + 1) > most_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
