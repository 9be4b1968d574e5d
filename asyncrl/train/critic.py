"""The critic: a value head on its own DeepSpeed engine, or on the policy's trunk.

| trunk | costs | gradient of the value loss |
|---|---|---|
| own | a second model and optimizer | only the critic |
| shared | one matrix | the policy's trunk too, weighted by `algo.value.coef` |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.value import HEADS
from asyncrl.config import TrainConfig
from asyncrl.train.deepspeed_engine import TrainEngine, divided_loading
from asyncrl.train.policy import CriticModel, load_critic, value_names
from asyncrl.train.vision import Placed

CRITIC = "critic"
"""The name under which the state of a separate critic's engine is kept."""
SLOW_RATE = 0.1
"""Of the way to the critic that its slow copy moves after each step, as in ArCHer."""


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
    heads: tuple[str, ...] = HEADS[:1]
    """Of `HEADS`, those that there are."""


class Critic:
    """Values of the states in which tokens were sampled. `engine` is None when the trunk is shared."""

    def __init__(self, config: CriticSettings, engine: TrainEngine | None) -> None:
        self.config = config
        self.engine = engine

    @property
    def names(self) -> tuple[str, ...]:
        """What `outputs` gives: the values [B,T] of each head, and of those that value states [B] that of the end."""
        return value_names(self.config.heads)

    @property
    def token_names(self) -> tuple[str, ...]:
        """Those of `names` that are of tokens."""
        return tuple(f"{head}values" for head in self.config.heads)

    @property
    def shared(self) -> bool:
        return self.engine is None

    def warming_up(self, step: int) -> bool:
        """True while only the critic learns."""
        return step < self.config.warmup_steps

    def outputs(
        self, policy: TrainEngine, token_ids: Tensor, mask: Tensor, images: Placed = ()
    ) -> dict[str, Tensor]:
        """Return what `names` names, with gradient. A collective under ZeRO-3."""
        if self.engine is not None:
            device = self.engine.device
            return self.engine.engine(token_ids.to(device), mask.to(device), images)
        found = policy.outputs(token_ids, mask, 1.0, ("values",), images=images)
        return {name: found[name] for name in self.names}


class SlowCritic:
    """A copy of the critic in float32 that follows it slowly: what a next state is worth comes from it (ArCHer)."""

    def __init__(self, critic: Critic, model: CriticModel) -> None:
        self.critic = critic
        self.model = model.eval().requires_grad_(False)

    @torch.no_grad()
    def outputs(
        self, engine: TrainEngine, token_ids: Tensor, mask: Tensor, images: Placed = ()
    ) -> dict[str, Tensor]:
        """Return what the critic's `outputs` does."""
        return self.model(token_ids.to(engine.device), mask.to(engine.device), images)

    @torch.no_grad()
    def after_step(self) -> None:
        """Move towards the critic."""
        assert self.critic.engine is not None
        trained = self.critic.engine.engine.module.parameters()
        for mine, other in zip(self.model.parameters(), trained, strict=True):
            mine.lerp_(other.to(mine), SLOW_RATE)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["weights"])


def make_slow_critic(critic: Critic, engine: TrainEngine, model: str) -> SlowCritic:
    """Return a copy of a critic with a trunk of its own, before it has been trained."""
    return SlowCritic(critic, load_critic(model, "float32", heads=critic.config.heads).to(engine.device))


def make_critic(config: CriticSettings, train: TrainConfig, model: str, dtype: str) -> Critic:
    """Return the critic that `config` describes, its own engine included."""
    if config.trunk == "shared":
        return Critic(config, None)
    with divided_loading(train, dtype):
        module = load_critic(
            model, dtype, train.gradient_checkpointing, train.offload_activations, config.heads
        )
    return Critic(config, TrainEngine(module, train, dtype))
