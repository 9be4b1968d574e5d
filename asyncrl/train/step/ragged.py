"""Numbers for the sampled tokens of rows of unequal lengths, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """B rows of numbers, one after the other."""

    values: Tensor
    """[N]"""
    counts: np.ndarray
    """[B] how many of the N each row has."""

    @classmethod
    def full(cls, counts: np.ndarray, value: float = 0.0) -> Ragged:
        """Return rows that hold one value everywhere, as float32."""
        return cls(torch.full((int(counts.sum()),), value), counts)

    @classmethod
    def of_padded(cls, values: Tensor, counts: np.ndarray) -> Ragged:
        """Return the first `counts[b]` of each row of `values` [B,S]."""
        return cls(values[within(counts, values.shape[1])], counts)

    @cached_property
    def starts(self) -> np.ndarray:
        """[B + 1] where each row begins, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def row(self, index: int) -> Tensor:
        """Return one row, a view."""
        return self.values[self.starts[index] : self.starts[index + 1]]

    def flat(self, rows: Sequence[int]) -> Tensor:
        """Return rows one after the other, in the order given."""
        return torch.cat([self.values[:0], *(self.row(index) for index in rows)])

    def zero_rows(self) -> list[int]:
        """Return the rows in which all numbers are 0, empty ones among them."""
        ends = torch.from_numpy(self.starts)
        num_others = torch.cat([torch.zeros(1, dtype=torch.long), (self.values != 0).cumsum(0)])[ends]
        return (num_others.diff() == 0).nonzero().flatten().tolist()

    def put(self, rows: Sequence[int], values: Tensor) -> None:
        """Replace rows by `values`, which has them one after the other."""
        sizes = [int(self.counts[index]) for index in rows]
        for index, part in zip(rows, values.split(sizes), strict=True):
            self.row(index).copy_(part)

    def padded(self, rows: Sequence[int]) -> Tensor:
        """Return rows as [len(rows), S], zeros beyond their ends; S is the longest of them."""
        counts = self.counts[list(rows)]
        found = torch.zeros(len(rows), int(counts.max(initial=0)), dtype=self.values.dtype)
        found[within(counts, found.shape[1])] = self.flat(rows)
        return found


def within(counts: np.ndarray, width: int) -> Tensor:
    """Return [B,width] bool, True at the first `counts[b]` places of row b."""
    return torch.arange(width) < torch.from_numpy(np.asarray(counts, np.int64))[:, None]
