"""Tensor parallelism of the trainer: consecutive ranks that hold a part of each linear layer and compute the same rows.

DeepSpeed's AutoTP puts the layers in place (column-parallel, then row-parallel: arXiv 1909.08053). Embeddings, norms
and the vocabulary projection stay whole on every rank. The optimizer keeps what its rank holds, under a name of its
own: a part of a row-parallel weight is no range of the whole one's elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.train.engine.engine_parts import EnginePart, Layout

COLUMN_PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Linear layers divided by their outputs, weight and bias along the first dimension."""
ROW_PARALLEL = ("o_proj", "down_proj")
"""Linear layers divided by their inputs: weights along the second dimension, while the bias stays whole."""
HEAD_NORMS = ("q_norm", "k_norm")
"""Whole on every rank, which sees its own heads: the ranks' gradients are summed."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a parameter a rank holds."""

    dim: int
    """Along which it is divided."""
    index: int
    count: int
    group: Any
    """The ranks that hold the parts."""

    def name(self, parameter: str) -> str:
        """Return the name of this part of a parameter."""
        return self.names(parameter)[self.index]

    def names(self, parameter: str) -> list[str]:
        """Return the names of all parts."""
        return [f"{parameter}.part{index}of{self.count}" for index in range(self.count)]

    def whole_shape(self, part: Tensor) -> tuple[int, ...]:
        return tuple(size * (self.count if dim == self.dim else 1) for dim, size in enumerate(part.shape))

    def whole(self, part: Tensor) -> Tensor:
        """Return the whole parameter. A collective of the group."""
        parts = [torch.empty_like(part) for _ in range(self.count)]
        dist.all_gather(parts, part.contiguous(), group=self.group)
        return torch.cat(parts, self.dim)


class PartsOfLayers(Layout):
    """Each rank has a part of each linear layer."""

    def __init__(self, module: nn.Module, ranks: int) -> None:
        self.ranks = ranks
        self._shards = {id(parameter): shard for parameter, shard in shards(module)}

    def part(self, parameter: nn.Parameter) -> Shard | None:
        """See `Layout`."""
        return self._shards.get(id(parameter))

    def whole(self, parameter: nn.Parameter, of: Tensor) -> Tensor:
        """See `Layout`."""
        shard = self.part(parameter)
        return of if shard is None else shard.whole(of)

    def whole_shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """See `Layout`."""
        shard = self.part(parameter)
        return super().whole_shape(parameter) if shard is None else shard.whole_shape(parameter)

    def ranks_of_pieces(self, optimizer: Any) -> Any:
        """See `Layout`."""
        return optimizer.dp_process_group


class TensorParallel(EnginePart):
    """Has DeepSpeed divide the layers over consecutive ranks."""

    @property
    def ranks(self) -> int:  # type: ignore[override]
        """See `EnginePart`."""
        return self.train.tensor_parallel

    def settings(self) -> dict[str, dict[str, Any]]:
        """See `EnginePart`."""
        return deepspeed_section(self.ranks)

    def joined(self, policy: nn.Module) -> None:
        """See `EnginePart`."""
        trunk: Any = policy.model
        check_divisible(trunk, trunk.config.get_text_config(), self.ranks)

    def initialized(self, engine: Any) -> None:
        """See `EnginePart`."""
        # It would compare the ranks' first inputs by pickled objects.
        engine.first_dataloader_check.remove()

    def layout(self, module: nn.Module) -> Layout:
        """See `EnginePart`."""
        return PartsOfLayers(module, self.ranks)


def deepspeed_section(ranks: int) -> dict[str, Any]:
    """Return DeepSpeed's settings for so many ranks; nothing for one."""
    if ranks == 1:
        return {}

    def spec(names: tuple[str, ...], kind: str, tensors: str = "weight", **more: Any) -> dict[str, Any]:
        return {"patterns": [rf".*\.({'|'.join(names)})\.({tensors})$"], "partition_type": kind, **more}

    specs = [
        spec(ROW_PARALLEL, "row"),
        spec(COLUMN_PARALLEL, "column", "weight|bias"),
        spec(HEAD_NORMS, "skip", grad_allreduce=True),
    ]
    division = {"use_default_specs": False, "layer_specs": specs}
    return {"tensor_parallel": {"autotp_size": ranks, "partition_config": division}}


def check_divisible(model: nn.Module, config: Any, ranks: int) -> None:
    """Raise `ConfigError` for a model whose layers cannot be divided so. config: of its text."""
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        size = getattr(config, key, None)
        if not isinstance(size, int) or size % ranks:
            raise ConfigError(f"train.tensor_parallel: must divide the model's {key}={size}, got {ranks}")
    known = {*COLUMN_PARALLEL, *ROW_PARALLEL}
    for name, module in model.named_modules():
        parts = name.split(".")
        inside = "layers" in parts
        if inside and isinstance(module, nn.Linear) and parts[-1] not in known:
            raise ConfigError(
                "train.tensor_parallel: must be 1 for a model with other linear layers than "
                f"{', '.join(sorted(known))}, such as {name}, got {ranks}"
            )
    if any(".experts." in name for name, _ in model.named_parameters()):
        raise ConfigError(f"train.tensor_parallel: must be 1 for a model with experts, got {ranks}")


def shards(module: nn.Module) -> Iterator[tuple[nn.Parameter, Shard]]:
    """Yield each divided parameter with the part of it that this rank holds."""
    for name, layer in module.named_modules():
        last = name.rpartition(".")[2]
        count = getattr(layer, "tp_world_size", 1)
        if count == 1 or last not in (*COLUMN_PARALLEL, *ROW_PARALLEL):
            continue
        dim = 0 if last in COLUMN_PARALLEL else 1
        for parameter in layer.parameters(recurse=False):
            if parameter.ndim > dim:
                yield parameter, Shard(dim, int(layer.tp_index), int(count), layer.mp_group)
