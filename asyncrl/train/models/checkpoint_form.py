"""A model's tensors under the names and in the shapes of its checkpoint, which vLLM and transformers load.

transformers keeps some weights of a layer fused in one parameter, while checkpoints and vLLM's loaders name each by
itself; other families rename parameters. transformers undoes that when it saves a model, and here for one
parameter at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion

_unchanged: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Names that mean the same in the checkpoint, by model, since finding out takes a millisecond each."""


def checkpoint_form(model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors as their checkpoint has them, and then the persistent buffers, such as biases of routers."""
    for name, tensor in tensors:
        yield from _split(model, name, tensor).items()
    for name, buffer in persistent_buffers(model):
        yield from _split(model, name, buffer).items()


class VersionForm:
    """What a version consists of: here the whole model."""

    def parameters(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters by the names under which they are published."""
        return model.named_parameters()

    def checkpoint(
        self, model: nn.Module, tensors: Iterator[tuple[str, Tensor]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield their tensors as the version's checkpoint has them."""
        return checkpoint_form(model, tensors)

    def whole_model(
        self, model: nn.Module, gathered: Callable[[list[nn.Parameter]], AbstractContextManager[Any]]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield `(name, tensor)` of the whole model where a version is less than that; else nothing.

        gathered: makes parameters whole while it is open, as ZeRO-3 needs.
        """
        return iter(())

    def untrained(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Have the model compute as before training, for passes without a gradient, while it is open; only where a
        version is less than the whole model."""
        raise NotImplementedError

    def is_whole(self, name: str) -> bool:
        """Return whether a tensor is one of the whole model's, and not one that a version has beside it."""
        return True

    def write_beside(
        self, model: nn.Module, tensors: dict[str, Tensor], folder: Path, base_model: str
    ) -> None:
        """Write what a version has beside the whole model into the folder of a policy. tensors: there are some."""


WHOLE = VersionForm()


def form_of(model: nn.Module) -> VersionForm:
    """Return what the versions of a model consist of: whoever adds something to it sets its `version_form`."""
    found: VersionForm = getattr(model, "version_form", WHOLE)
    return found


def published(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield what a version consists of, by the names under which it is published."""
    return form_of(model).parameters(model)


def from_checkpoint(model: nn.Module, name: str, like: Tensor, found: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor of the model called `name` and shaped as `like`, from those of a checkpoint.

    Raises KeyError for one that is not there.
    """
    if name in found:
        return found[name]
    # Where each element goes tells where it came from, whatever transformers does to get there.
    parts = _split(model, name, torch.arange(like.numel()).view(like.shape))
    whole = torch.empty(like.numel(), dtype=found[next(iter(parts))].dtype)
    for part, positions in parts.items():
        whole[positions.reshape(-1)] = found[part].reshape(-1)
    return whole.view(like.shape)


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that a checkpoint holds."""
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}".removeprefix("."), buffer


def _split(model: nn.Module, name: str, tensor: Tensor) -> dict[str, Tensor]:
    unchanged = _unchanged.setdefault(model, set())
    if name in unchanged:
        return {name: tensor}
    parts = revert_weight_conversion(model, {name: tensor})  # type: ignore[arg-type]
    if list(parts) == [name]:
        unchanged.add(name)
    return parts
