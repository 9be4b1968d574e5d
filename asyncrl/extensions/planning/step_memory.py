"""What a step of the trainer takes besides what DeepSpeed keeps, as `training.py` measures it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncrl.extensions.planning.states import Size


@dataclass(frozen=True, slots=True)
class Activations:
    """What is computed and kept, in bytes."""

    bytes: int = 0
    logits: int = 0
    """The part of them that has the vocabulary's size."""


@dataclass(slots=True)
class StepMemory:
    """What a step takes besides what DeepSpeed keeps, in bytes."""

    policy: Size
    critic: Size | None = None
    copies: dict[str, int] = field(default_factory=dict)
    """Weights of auxiliary models on the device while the policy trains, by what they are."""
    offloaded: dict[str, int] = field(default_factory=dict)
    """The part of those that is on the device only for its own pass."""
    divided: dict[str, Size] = field(default_factory=dict)
    """How large auxiliary models are that are spread over the ranks, by what they are."""
    read_in_training: str = ""
    """Which of those models computes beside the policy's own passes."""
    passes: Activations = Activations()
    """At the peak of the passes without gradient."""
    before_gradients: Activations = Activations()
    """At the peak of a micro-batch, as long as no weight has a gradient."""
    with_gradients: Activations = Activations()
    """At the peak from the first gradient of a weight on."""
    rows: int = 1
    """The rows of one micro-batch."""

    @property
    def trained(self) -> dict[str, Size]:
        """What has an optimizer, by what its items are called."""
        return {"": self.policy} | ({"critic: ": self.critic} if self.critic else {})

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> StepMemory:
        """Return what `dataclasses.asdict` was given."""
        policy, critic = Size(**data["policy"]), data["critic"] and Size(**data["critic"])
        divided = {name: Size(**size) for name, size in data["divided"].items()}
        peaks = {name: Activations(**data[name]) for name in ("passes", "before_gradients", "with_gradients")}
        return cls(**{**data, "policy": policy, "critic": critic, "divided": divided, **peaks})
