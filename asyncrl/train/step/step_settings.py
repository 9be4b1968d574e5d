"""The part of the configuration that a training step reads."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.config import Config


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How a batch is cut and scored."""

    temperature: float
    """The temperature of the policy's distribution, as in the rollouts."""
    micro_batch_tokens: int
    num_minibatches: int
    """Optimizer steps a batch."""
    horizon: float
    """Length in tokens for fixed-length aggregation where the recipe gives none."""

    @classmethod
    def of(cls, config: Config) -> StepSettings:
        return cls(
            temperature=config.rollout.temperature,
            micro_batch_tokens=config.train.micro_batch_tokens,
            num_minibatches=config.train.num_minibatches,
            horizon=float(config.max_tokens),
        )
