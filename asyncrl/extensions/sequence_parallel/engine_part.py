"""Sequence parallelism: ranks that compute the same rows together, each a part of the tokens (Ulysses, 2309.14509).

Everything in a transformer but attention treats each token by itself, so a rank runs it over its own part. For
attention the ranks exchange: each gets all tokens of a part of the heads, and afterwards its own tokens of all heads.

    rank 0: tokens 0..n-1, all heads --all-to-all--> all tokens, heads 0..h-1 --attention--> ... --all-to-all--> back

The exchange is DeepSpeed's. Its attention module is not used: it takes neither a tree of prefixes nor values of another
size than keys, as latent attention has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from deepspeed.sequence.layer import _dim_zero_all_to_all, register_all_to_all_group
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.train.engine.engine_parts import EnginePart
from asyncrl.train.models.prefix_tree import compute_together


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The ranks that compute the same rows together: a `RowsTogether`."""

    group: Any
    size: int
    rank: int
    """The rank of this process within the group."""
    setting: ClassVar[str] = "train.sequence_parallel"

    def to_heads(self, x: Tensor) -> Tensor:
        """Return all tokens of this rank's heads [1,H/size,n*size,D] for this rank's tokens `x` [1,H,n,D]."""
        _, heads, tokens, width = x.shape
        parts = x[0].unflatten(0, (self.size, heads // self.size))
        return (
            _dim_zero_all_to_all(self.group, parts)
            .permute(1, 0, 2, 3)
            .reshape(1, -1, self.size * tokens, width)
        )

    def to_tokens(self, x: Tensor) -> Tensor:
        """Return all heads of this rank's tokens [1,n,H,D] for this rank's heads of all tokens `x` [1,n*size,h,D]."""
        parts = x[0].unflatten(0, (self.size, -1))
        return _dim_zero_all_to_all(self.group, parts).permute(1, 0, 2, 3).flatten(1, 2)[None]

    def join(self, part: Tensor, mine: Tensor) -> Tensor:
        """Return values [N] or [N,H] of which each rank has those where its `mine` [N] holds, on all of them.

        All ranks must go on to compute the same loss: the gradient of a part is its own rank's.
        """
        where = mine.view(-1, *[1] * (part.ndim - 1)).expand(len(mine), *part.shape[1:])
        whole = torch.zeros(where.shape, dtype=part.dtype, device=part.device).masked_scatter(where, part)
        return _Sum.apply(whole, self.group)


class _Sum(torch.autograd.Function):
    """The sum over a group of ranks that all continue alike, so that each one's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        found = values.clone()
        dist.all_reduce(found, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


_made: dict[int, SequenceGroup] = {}


def use(size: int) -> None:
    """From now on let every `size` > 1 consecutive ranks compute rows together. A collective.

    Raises `ConfigError` when they do not divide the ranks.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    if ranks % size:
        raise ConfigError(f"train.sequence_parallel: must divide the number of ranks, got {size} for {ranks}")
    if size not in _made:
        groups = [dist.new_group(list(range(start, start + size))) for start in range(0, ranks, size)]
        mine = groups[dist.get_rank() // size]
        register_all_to_all_group(mine)
        _made[size] = SequenceGroup(mine, size, dist.get_rank() % size)
    compute_together(_made[size])


class SequenceParallel(EnginePart):
    """Makes the groups of ranks."""

    @property
    def ranks(self) -> int:  # type: ignore[override]
        """See `EnginePart`."""
        return self.train.sequence_parallel

    def joined(self, policy: nn.Module) -> None:
        """See `EnginePart`."""
        use(self.ranks)
        trunk: Any = policy.model
        check_heads(trunk.config.get_text_config(), self.ranks)


def check_heads(config: Any, size: int) -> None:
    """Raise `ConfigError` when a model's heads cannot be dealt to `size` ranks."""
    heads = config.num_attention_heads
    if heads % size:
        raise ConfigError(
            f"train.sequence_parallel: must divide the model's num_attention_heads={heads}, got {size}"
        )
