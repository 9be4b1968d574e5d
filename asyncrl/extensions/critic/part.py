"""The critic: a value head on its own DeepSpeed engine, or on the policy's trunk.

| trunk | costs | gradient of the value loss |
|---|---|---|
| own | a second model and optimizer | only the critic |
| shared | one matrix | the policy's trunk too, weighted by `algo.value.coef` |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from asyncrl.algo.inputs import LossInputs, Totals
from asyncrl.algo.metrics import Metrics
from asyncrl.algo.objective import Objective
from asyncrl.config import TrainConfig
from asyncrl.extensions.critic.value import value_term
from asyncrl.extensions.critic.value_head import DETACHED, VALUES, new_head, read_values
from asyncrl.train.engine.deepspeed_engine import TrainEngine, divided_loading
from asyncrl.train.models.loading import load_model
from asyncrl.train.models.policy import (
    NO_EXTRAS,
    Extras,
    RunRows,
    after_first,
    run_rows,
    when_it_computes,
)
from asyncrl.train.models.prefix_tree import (
    enable_prefix_trees,
    run_trunk,
    tree_of,
    uses_prefix_trees,
)
from asyncrl.train.step.gradient import Step
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import Rows, StepBatch
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import whole_batch

CRITIC = "critic"
"""The name under which the state of a separate critic's engine is kept."""


@dataclass(frozen=True, slots=True)
class CriticSettings:
    """The part of `algo.value` that is about the model; the rest is about its loss."""

    trunk: str
    learning_rate: float
    """The learning rate of an own trunk; a shared one learns at the policy's rate."""
    warmup_steps: int
    """First steps in which only the critic learns."""
    steps: int = 1
    """Optimizer steps on each batch."""

    @classmethod
    def of(cls, objective: Objective) -> CriticSettings:
        """Return those of an objective that reads values."""
        value = objective.settings["value"]
        return cls(value["trunk"], float(value["learning_rate"]), value["warmup_steps"], value["steps"])


class Critic(StepPart):
    """Values of the states in which tokens were sampled. `engine` is None when the trunk is shared."""

    name = CRITIC

    def __init__(self, config: CriticSettings, engine: TrainEngine | None) -> None:
        self.config = config
        self.engine = engine
        self.on_policy = engine is None
        self.steps_ahead = config.steps - 1

    @property
    def shared(self) -> bool:
        return self.engine is None

    def learns_alone(self, version: int) -> bool:
        """See `StepPart`: while it warms up."""
        return version < self.config.warmup_steps

    def reads(self, policy_learns: bool | None = None) -> tuple[str, ...]:
        """See `StepPart`."""
        if not self.shared:
            return ()
        if policy_learns is None:
            return VALUES
        return ("values" if policy_learns else DETACHED,)

    def take(self, computed: Mapping[str, Ragged], found: StepTensors) -> None:
        """See `StepPart`."""
        if self.shared:
            _keep(computed, found)

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`; what a critic with a trunk of its own says."""
        if not self.shared:
            _keep(
                whole_batch(
                    engine, batch, settings,
                    lambda rows: self.outputs(engine, rows.token_ids, rows.mask, rows.extras), VALUES,
                ),
                found,
            )  # fmt: skip

    def outputs(
        self, policy: TrainEngine, token_ids: Tensor, mask: Tensor, extras: Extras = NO_EXTRAS
    ) -> dict[str, Tensor]:
        """Return the values [B,T] and [B] that of the end, with gradient. A collective under ZeRO-3."""
        if self.engine is not None:
            device = self.engine.device
            return self.engine.engine(token_ids.to(device), mask.to(device), extras)
        found = policy.outputs(token_ids, mask, 1.0, ("values",), extras=extras)
        return {name: found[name] for name in VALUES}

    def loss(
        self, step: Step, micro: Rows, outputs: Mapping[str, Tensor], inputs: LossInputs, totals: Totals
    ) -> tuple[Tensor, Metrics]:
        """See `StepPart`."""
        own = outputs
        if not self.shared:
            own = self.outputs(step.engine, micro.token_ids, micro.mask, micro.extras)
        seen = dataclasses.replace(inputs, extras={**inputs.extras, "values": own["values"]})
        return value_term(seen, totals, step.objective.settings["value"])

    def update(self) -> float:
        """See `StepPart`."""
        assert self.engine is not None
        return self.engine.step(self.config.learning_rate)


def _keep(computed: Mapping[str, Ragged], found: StepTensors) -> None:
    found.tensors["old_values"] = computed["values"]
    found.rows["bootstrap_values"] = computed["end_values"].values


class CriticModel(nn.Module):
    """A transformer with a value head, initialised from the policy's trunk; starts at value 0."""

    def __init__(self, model: Any, rows: RunRows = run_rows) -> None:
        super().__init__()
        self.model = model.base_model
        self.rows = rows
        self.value_head = new_head(model)

    def forward(self, token_ids: Tensor, mask: Tensor, extras: Extras = NO_EXTRAS) -> dict[str, Tensor]:
        """Return `VALUES`; see `read_values`."""
        tree = None
        if uses_prefix_trees(self.model):
            tree = tree_of(token_ids, mask)
            hidden = run_trunk(self.model, tree)
        else:
            hidden = self.rows(self.model, token_ids, extras, {})
        return read_values(self.value_head, hidden, tree, after_first(mask))


def load_critic(
    path: str,
    dtype: str,
    gradient_checkpointing: bool = False,
    offload_activations: bool = False,
) -> CriticModel:
    """Load a critic that starts from a causal LM's trunk, to be trained."""
    model, rows = load_model(path, dtype, gradient_checkpointing, offload_activations)
    critic = CriticModel(model, rows)
    when_it_computes(critic, model, lambda: enable_prefix_trees(model))
    return critic.train()


def make_critic(config: CriticSettings, train: TrainConfig, model: str, dtype: str) -> Critic:
    """Return the critic that `config` describes, its own engine included."""
    if config.trunk == "shared":
        return Critic(config, None)
    with divided_loading(train, dtype):
        module = load_critic(model, dtype, train.gradient_checkpointing, train.offload_activations)
    return Critic(config, TrainEngine(module, train, dtype))


def critic(context: PartContext) -> Critic:
    """Return the part of a run. A collective."""
    config = context.config
    return make_critic(CriticSettings.of(context.objective), config.train, context.model, config.model.dtype)
