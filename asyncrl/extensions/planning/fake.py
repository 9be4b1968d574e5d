"""Runs code on tensors without memory, and counts what they would have taken.

Weights and everything computed from them are fake (`torch._subclasses.FakeTensorMode`): they have a shape and a type,
and no values. The token ids and masks of a batch stay real, so that code which reads them, as the choice of sampled
positions does, takes its real way.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
VALUES = (aten._local_scalar_dense.default, aten.item.default)
"""What reads a number out of a tensor."""
INDEXED = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
)


@dataclass
class Peak:
    """The most bytes that were alive at once in one phase, by kind."""

    bytes: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


class MemoryTracker(TorchDispatchMode):
    """Counts the bytes of all fake tensors that are alive. To be entered inside a `FakeTensorMode`.

    vocab_size: tensors whose last dimension it is, and are of kind "logits", others "activations".
    """

    def __init__(self, vocab_size: int = 0) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.live = 0
        self.kinds = {"activations": 0, "logits": 0}
        self.phase = "forward"
        self.peaks: dict[str, Peak] = {}
        self._known: dict[int, tuple[Any, str, int]] = {}

    def begin(self, phase: str) -> None:
        """Count what follows under another phase."""
        self.phase = phase
        self._note()

    def forget_all(self) -> None:
        """Count from here: nothing that is alive now, such as weights, and no view of it."""
        self._known = {key: (ref, kind, 0) for key, (ref, kind, _) in self._known.items()}
        self.live, self.kinds, self.peaks = 0, dict.fromkeys(self.kinds, 0), {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if tensors and not any(isinstance(x, FakeTensor) for x in tensors):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func in VALUES:
            return args[0].dtype == torch.bool or 1
        if func in INDEXED:
            args = tuple(_numbered(x) if isinstance(x, list | tuple) else x for x in args)
        if func is aten.masked_select.default:
            found = args[0].new_empty(_count(args[1]))
        elif func is aten.nonzero.default:
            # Which of computed values are not zero is unknown: at most all.
            found = args[0].new_empty((args[0].numel(), args[0].ndim), dtype=torch.int64)
        else:
            found = func(*args, **kwargs)
        for tensor in _tensors((found,)):
            if isinstance(tensor, FakeTensor):
                self._count_storage(tensor)
        return found

    def _count_storage(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes()
        logits = self.vocab_size and tensor.ndim > 1 and tensor.shape[-1] == self.vocab_size
        kind = "logits" if logits else "activations"
        self._known[key] = (weakref.ref(storage, lambda _: self._forget(key)), kind, size)
        self.live += size
        self.kinds[kind] += size
        self._note()

    def _forget(self, key: int) -> None:
        _, kind, size = self._known.pop(key)
        self.live -= size
        self.kinds[kind] -= size

    def _note(self) -> None:
        peak = self.peaks.setdefault(self.phase, Peak())
        if self.live > peak.bytes:
            peak.bytes, peak.by_kind = self.live, dict(self.kinds)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments or results."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _numbered(indices: Any) -> list[Any]:
    """Return indices with each mask of real values as the positions that it chooses."""
    found: list[Any] = []
    for index in indices:
        if not isinstance(index, Tensor) or index.dtype != torch.bool:
            found.append(index)
        elif isinstance(index, FakeTensor):
            raise NotImplementedError("an index that depends on computed values")
        else:
            with unset_fake_temporarily():
                found += index.nonzero().unbind(1)
    return found


def _count(mask: Tensor) -> int:
    if isinstance(mask, FakeTensor):
        return mask.numel()
    with unset_fake_temporarily():
        return int(mask.sum())


@contextmanager
def fake_tensors(vocab_size: int) -> Iterator[MemoryTracker]:
    """Make everything fake that is created while it is open, and count it."""
    with FakeTensorMode(allow_non_fake_inputs=True), MemoryTracker(vocab_size) as tracker:
        yield tracker
