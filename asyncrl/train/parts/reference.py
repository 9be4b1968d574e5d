"""The reference policy: a copy here, the base of an adapter, or a server. It may follow the policy now and then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.config import Config
from asyncrl.config_sections import is_url
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.parts.frozen import BasePolicy, DividedPolicy, FrozenPolicy
from asyncrl.train.parts.needed_models import load_copy, load_other, load_still, offloaded
from asyncrl.train.parts.scoring import EngineScorer
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors


class Reference(StepPart):
    """Scores the batch under the reference."""

    name = "reference"

    def __init__(self, policy: FrozenPolicy | DividedPolicy | BasePolicy | EngineScorer) -> None:
        self.policy = policy

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`."""
        found.tensors["reference_logp"] = self.policy.logp(engine, batch, settings)

    def after_step(self, engine: TrainEngine, version: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """See `StepPart`."""
        if isinstance(self.policy, FrozenPolicy):
            self.policy.after_step(engine, version)
        return {}

    def state_dict(self) -> dict[str, Any] | None:
        """See `StepPart`."""
        return self.policy.state_dict() if isinstance(self.policy, FrozenPolicy) else None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `StepPart`."""
        if isinstance(self.policy, FrozenPolicy):
            self.policy.load_state_dict(state)


def reference(context: PartContext) -> Reference:
    """Return the part of a run, as the section `reference` says. A collective."""
    return Reference(_policy(context.config, context.model))


def _policy(config: Config, model: str) -> FrozenPolicy | DividedPolicy | BasePolicy | EngineScorer:
    section = config.reference
    if is_url(section.path):
        return EngineScorer(section.path)
    if config.lora.rank and not section.path and not section.refresh_every:
        return BasePolicy()
    if not section.refresh_every:
        return load_still(config, lambda: _read_only(config, model))
    return FrozenPolicy(_read_only(config, model), offloaded(config), section.refresh_every)


def _read_only(config: Config, model: str) -> PolicyModel:
    """Load the reference's weights: the policy's where the recipe names no others."""
    path = config.reference.path
    return load_other(config, path) if path else load_copy(config, model)
