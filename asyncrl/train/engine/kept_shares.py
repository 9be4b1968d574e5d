"""Each rank's share of the version before, under ZeRO-3: its forward pass needs no file and gathers nothing.

A rank keeps 1/R of the weights in host memory, and copies its share back and forth. Reading the file on the first rank
and giving each rank its share of it takes two gathers of the whole model, and four copies of it through one rank's host
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class KeptShares:
    """Two host copies of this rank's share: of a kept version, and of the trained weights while that takes their place.

    published: yields what a version consists of, by name. whole_again: makes the small parameters that every rank has
    whole what the shares are. mark: called now and then while it works.
    """

    def __init__(
        self,
        published: Callable[[], Iterator[tuple[str, nn.Parameter]]],
        whole_again: Callable[[], None],
        mark: Callable[[], None],
    ) -> None:
        self._published, self._whole_again, self._mark = published, whole_again, mark
        self.version: int | None = None
        """The version that is kept."""
        self._kept: list[Tensor] = []
        self._trained: list[Tensor] = []
        self._is_current = False
        """Whether `_trained` is what the model has."""

    @torch.no_grad()
    def keep(self, version: int) -> None:
        """Keep the weights as they are now, which are those of `version`, in place of what was kept. No collective."""
        if version == self.version:
            return
        if self._is_current:
            self._kept, self._trained = self._trained, self._kept
        else:
            self._kept = self._places(self._kept)
            for kept, share in zip(self._kept, self._shares(), strict=True):
                self._mark()
                kept.copy_(share, non_blocking=True)
            self._settle()
        self._is_current = False
        self.version = version

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the model have the weights that are kept while it is open; the trained ones come back bit by bit.

        A collective where there are small parameters that every rank has whole.
        """
        self._trained = self._places(self._trained)
        with torch.no_grad():
            for trained, share, kept in zip(self._trained, self._shares(), self._kept, strict=True):
                self._mark()
                trained.copy_(share, non_blocking=True)
                share.copy_(kept, non_blocking=True)
            self._settle()
            self._whole_again()
        try:
            yield
        finally:
            with torch.no_grad():
                for trained, share in zip(self._trained, self._shares(), strict=True):
                    self._mark()
                    share.copy_(trained, non_blocking=True)
                self._settle()
                self._whole_again()
            self._is_current = True

    def forget_trained(self) -> None:
        """Take it that the model may get other weights before anything is kept."""
        self._is_current = False

    def _shares(self) -> list[Tensor]:
        found = []
        for _, parameter in self._published():
            divided: Any = parameter
            found.append(divided.ds_tensor.data)
        return found

    def _places(self, places: Sequence[Tensor]) -> list[Tensor]:
        """Return host memory for all shares: that of before, or new, to which a GPU writes by itself."""
        return list(places) or [
            torch.empty(one.shape, dtype=one.dtype, pin_memory=torch.cuda.is_available())
            for one in self._shares()
        ]

    def _settle(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
