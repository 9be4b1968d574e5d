"""`train.sequence_parallel` as a part of the engine: see `asyncrl.train.models.sequence_group`."""

from __future__ import annotations

from typing import Any

from torch import nn

from asyncrl.errors import ConfigError
from asyncrl.train.engine.engine_parts import EnginePart
from asyncrl.train.models.sequence_group import use


class SequenceParallel(EnginePart):
    """Makes the groups of ranks, or ends their use."""

    @property
    def ranks(self) -> int:  # type: ignore[override]
        """See `EnginePart`."""
        return self.train.sequence_parallel

    def joined(self, policy: nn.Module) -> None:
        """See `EnginePart`."""
        use(self.ranks)
        if self.ranks > 1:
            trunk: Any = policy.model
            check_heads(trunk.config.get_text_config(), self.ranks)


def check_heads(config: Any, size: int) -> None:
    """Raise `ConfigError` when a model's heads cannot be dealt to `size` ranks."""
    heads = config.num_attention_heads
    if heads % size:
        raise ConfigError(
            f"train.sequence_parallel: must divide the model's num_attention_heads={heads}, got {size}"
        )
