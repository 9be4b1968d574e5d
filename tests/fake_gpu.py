"""Tensors that say they are on a GPU, of which there need not be one: an operation that mixes them with a CPU's fails.

They have no values. A number read from one is 1, a truth value is True, and a mask chooses every place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from asyncrl.algo.inputs import LossInputs

aten = torch.ops.aten
NUMBERS = {Tensor.__int__: int, Tensor.__float__: float, Tensor.__bool__: bool, Tensor.item: int}


class _Methods(TorchFunctionMode):
    """Does what of a tensor's methods asks a driver for its device before it comes to an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__invert__:
            return torch.bitwise_not(args[0])
        if func in NUMBERS:
            return NUMBERS[func](1)
        if func is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=args[0].dtype, device=args[0].device)
        if func in (Tensor.nonzero, torch.nonzero):
            return args[0].new_empty((args[0].numel(), args[0].ndim), dtype=torch.int64)
        if func is Tensor.split and isinstance(args[1], list):
            # What a mask has chosen may be longer than it is in truth.
            return tuple(args[0].new_empty((size, *args[0].shape[1:])) for size in args[1])
        if func is Tensor.__getitem__ and args[0].device.type == "cuda":
            like = torch.empty(args[0].shape, device="meta")[_places(args[0], args[1])]
            return args[0].new_empty(like.shape)
        if func is Tensor.__setitem__ and args[0].device.type == "cuda":
            torch.empty(args[0].shape, device="meta")[_places(args[0], args[1])]
            return None
        return func(*args, **(kwargs or {}))


def _places(indexed: Tensor, index: Any) -> Any:
    """Return an index for a tensor without values, with a mask as places: every one of them."""
    found: list[Any] = []
    for one in index if isinstance(index, tuple) else (index,):
        if not isinstance(one, Tensor):
            found.append(one)
            continue
        if one.device.type not in ("cpu", indexed.device.type):
            raise FakeTensorDeviceMismatchError(
                f"a tensor on {indexed.device} is indexed by one on {one.device}"
            )
        if one.dtype == torch.bool:
            found += torch.zeros((one.ndim, one.numel()), dtype=torch.int64, device="meta").unbind()
        else:
            found.append(torch.zeros(one.shape, dtype=torch.int64, device="meta"))
    return tuple(found)


class _Values(TorchDispatchMode):
    """Answers what depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        if func is aten._unique2.default:
            # No two are equal.
            each = args[0].new_empty(args[0].numel(), dtype=torch.int64)
            return args[0].flatten(), each.view(args[0].shape), each
        if func is aten.masked_select.default:
            # Both are read, so that their devices are compared.
            return (args[0] * args[1]).flatten()
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Make fake all tensors that are made while it is open; those made on "cuda" are on a GPU."""
    # Whether values are finite cannot be asked.
    checked = mock.patch.object(LossInputs, "check_finite")
    with checked, FakeTensorMode(allow_non_fake_inputs=True), _Values(), _Methods():
        yield
