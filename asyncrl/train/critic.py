"""The critic: a value head on its own DeepSpeed engine, or on the policy's trunk.

| trunk | costs | gradient of the value loss |
|---|---|---|
| own | a second model and optimizer | only the critic |
| shared | one matrix | the policy's trunk too, weighted by `algo.value.coef` |
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncrl.config import TrainConfig
from asyncrl.train.deepspeed_engine import TrainEngine, divided_loading
from asyncrl.train.policy import VALUES, load_critic
from asyncrl.train.vision import Placed

CRITIC = "critic"
"""The name under which the state of a separate critic's engine is kept."""


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The part of `algo.value` that is about the model; the rest is about its loss."""

    trunk: str
    learning_rate: float
    """Of an own trunk; a shared one learns at the policy's rate."""
    warmup_steps: int
    """First steps in which only the critic learns."""
    steps: int = 1
    """Optimizer steps on each batch."""


class Critic:
    """Values of the states in which tokens were sampled. `engine` is None when the trunk is shared."""

    def __init__(self, config: CriticSettings, engine: TrainEngine | None) -> None:
        self.config = config
        self.engine = engine

    @property
    def shared(self) -> bool:
        return self.engine is None

    def warming_up(self, step: int) -> bool:
        """True while only the critic learns."""
        return step < self.config.warmup_steps

    def outputs(
        self, policy: TrainEngine, token_ids: Tensor, mask: Tensor, images: Placed = ()
    ) -> dict[str, Tensor]:
        """Return the values [B,T] and [B] that of the end, with gradient. A collective under ZeRO-3."""
        if self.engine is not None:
            device = self.engine.device
            return self.engine.engine(token_ids.to(device), mask.to(device), images)
        found = policy.outputs(token_ids, mask, 1.0, ("values",), images=images)
        return {name: found[name] for name in VALUES}


def make_critic(config: CriticSettings, train: TrainConfig, model: str, dtype: str) -> Critic:
    """Return the critic that `config` describes, its own engine included."""
    if config.trunk == "shared":
        return Critic(config, None)
    with divided_loading(train, dtype):
        module = load_critic(model, dtype, train.gradient_checkpointing, train.offload_activations)
    return Critic(config, TrainEngine(module, train, dtype))
