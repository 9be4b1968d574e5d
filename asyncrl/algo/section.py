"""The keys of `algo` with their types, defaults, bounds and meaning.

A part is the name of a function, or a table with `name` and the function's own parameters. Those are checked against
the function itself (`asyncrl.algo.settings`), for it may be a user's.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from asyncrl.section import Section, Seldom

Part = str | dict[str, Any]


class KlConfig(Section):
    """The divergence from the reference policy."""

    estimator: Seldom[str] = "k3"
    """Estimator of the divergence from the reference policy (docs/algorithms/regularisation.md)."""
    coef: float = 0.0
    """Weight of the divergence; 0 loads no reference."""
    where: Seldom[Literal["loss", "reward"]] = "loss"
    """Whether it is a term of the loss, or is taken from the rewards."""
    unbiased: Seldom[bool] = False
    """Multiply the estimate by the ratio of policy and behavior policy; only in the loss."""
    target: Seldom[float | None] = None
    """Divergence that the weight is steered to; left out, the weight is constant."""
    horizon: Seldom[int] = 10000
    """Episodes over which the weight is steered."""

    @field_validator("unbiased")
    @classmethod
    def _only_a_loss_is_weighed(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("where") == "reward":
            raise ValueError("weighs the KL's gradient, which one in the reward (algo.kl.where) has not")
        return value


class EntropyControlConfig(Section):
    """How the weight of the entropy is steered."""

    target: Seldom[float | None] = None
    """Entropy that the weight is steered to; left out, the weight is constant."""
    step: Seldom[float] = Field(0.005, ge=0)
    """What the weight of the entropy changes by in a step."""


class LrScalingConfig(Section):
    """How the learning rate follows the effective sample size."""

    power: Seldom[float] = 0.0
    """Power of the effective sample size that scales the learning rate; 0 for none."""
    base_ess: Seldom[float] = 1.0
    """Effective sample size from which on the rate is not scaled."""


class ValueConfig(Section):
    """The critic."""

    coef: Seldom[float] = 0.5
    """Weight of the critic's loss."""
    clip: Seldom[float | None] = 0.2
    """Change of a value beyond which its loss is clipped; left out, there is no clip."""
    huber_delta: Seldom[float | None] = None
    """Error from which on the critic's loss is linear; left out, it is quadratic."""
    trunk: Seldom[Literal["own", "shared"]] = "own"
    """A model and optimizer of its own for the critic, or a head on the policy's trunk."""
    learning_rate: float = Field(1e-5, ge=0)
    """Learning rate of an own trunk; a shared one learns at the policy's."""
    warmup_steps: Seldom[int] = Field(0, ge=0)
    """First steps in which only the critic learns."""
    steps: Seldom[int] = Field(1, ge=1)
    """Optimizer steps on each batch of a critic with a trunk of its own; each has new targets."""


class StalenessControlConfig(Section):
    """A staleness limit that follows the effective sample size."""

    enabled: Seldom[bool] = False
    """Lower and raise the staleness limit by the effective sample size, up to `buffer.max_staleness`
    (docs/algorithms/asynchrony-control.md)."""
    minimum: Seldom[int] = Field(0, ge=0)
    """Lowest limit."""
    low_ess: Seldom[float] = Field(0.3, ge=0)
    """Effective sample size, as a share, below which the limit falls."""
    high_ess: Seldom[float] = Field(0.7, ge=0)
    """Share above which it rises."""
    patience: Seldom[int] = Field(5, ge=1)
    """Steps in a row below or above before the limit moves by one."""


class AlgoConfig(Section):
    """The objective. `algo.preset` names a published method, whose parts the other keys change: a part given by a name,
    or by a table with `name` and its parameters, see [algorithms](algorithms/README.md)."""

    advantage: Part = Field(default_factory=lambda: {"name": "grpo"})
    """How rewards become advantages (docs/algorithms/advantages.md)."""
    normalize: Part = Field(default_factory=lambda: {"name": "none"})
    """How advantages are normalised over the batch (docs/algorithms/regularisation.md)."""
    loss: Part = Field(default_factory=lambda: {"name": "ppo_clip"})
    """The loss of the policy (docs/algorithms/losses.md)."""
    corrections: list[Part] = Field(default_factory=list)
    """Weights and masks for the difference between sampling and training policy (docs/algorithms/corrections.md)."""
    aggregation: Part = Field(default_factory=lambda: {"name": "token_mean"})
    """How the losses of tokens become one number (docs/algorithms/losses.md)."""
    proximal: Part = Field(default_factory=lambda: {"name": "recompute"})
    """The policy that the clipping is around (docs/algorithms/proximal.md)."""
    kl: KlConfig = KlConfig()
    entropy_coef: float = 0.0
    """Weight of the policy's entropy."""
    entropy_control: EntropyControlConfig = EntropyControlConfig()
    success_nll_coef: Seldom[float] = Field(0.0, ge=0)
    """Weight of the negative log-likelihood of episodes with a reward above 0 (docs/algorithms/losses.md). Below 0,
    successes would be unlearnt without bound."""
    lr_scaling: LrScalingConfig = LrScalingConfig()
    value: ValueConfig = ValueConfig()
    shaping: list[Part] = Field(default_factory=list)
    """Changes of rewards, such as penalties for length (docs/algorithms/regularisation.md)."""
    filters: list[Part] = Field(default_factory=list)
    """Which rows leave the loss (docs/algorithms/regularisation.md)."""
    denominator: Seldom[Literal["original", "kept"]] = "original"
    """Whether means are over all rows, or those that the filters keep."""
    baseline_unit: Seldom[Literal["branches", "episodes"]] = "branches"
    """What a group's baseline compares: all rows, or episodes with the mean of their rows. Where an agent plays and the
    advantage gives a row one number, `"episodes"` is the default."""
    staleness_control: StalenessControlConfig = StalenessControlConfig()
