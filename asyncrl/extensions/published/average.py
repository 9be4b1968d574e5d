"""The average of past policies as the proximal policy (PPO-EWMA, see `asyncrl.extensions.published.proximal.ewma`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from asyncrl.extensions.published.proximal.ewma import beta_from_staleness, should_reset, update_ewma
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.checkpoint_form import published
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.parts.frozen import score
from asyncrl.train.parts.needed_models import load_copy
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import whole_batch


class AveragedPolicy(StepPart):
    """The exponentially weighted average of past policies, the proximal policy of PPO-EWMA.

    `beta` None follows the measured staleness of each batch (`beta_from_staleness`). The average returns to the
    current policy when fewer than `reset_below` of the tokens carry a gradient.

    It is kept in float32, from the optimizer's own weights. A `model` of another type is its rounded form, as the
    trained model is that of the optimizer's; the average itself is then in host memory.
    """

    name = "average"

    def __init__(self, model: PolicyModel, beta: float | None = None, reset_below: float = 0.9) -> None:
        self.model = model
        self.beta = beta
        self.reset_below = reset_below
        self.total_weight = 1.0
        self.resets = 0
        weights = [parameter.detach() for _, parameter in published(model.model)]
        rounded = any(weight.dtype != torch.float32 for weight in weights)
        self.exact = [weight.to("cpu", torch.float32) for weight in weights] if rounded else None

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`: it is the proximal policy."""
        found.tensors["proximal_logp"] = whole_batch(
            engine, batch, settings,
            lambda rows: score(self.model, engine, rows, settings.temperature), ("logp",),
        )["logp"]  # fmt: skip

    def after_step(self, engine: TrainEngine, version: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """See `StepPart`. A collective under ZeRO-3."""
        clipped = metrics.get("clip_fraction")
        return self.follow(engine, metrics.get("lag/mean", 0.0), None if clipped is None else 1.0 - clipped)

    @torch.no_grad()
    def follow(
        self, engine: TrainEngine, staleness: float, active_fraction: float | None
    ) -> dict[str, float]:
        """Move the average towards the current weights; return its metrics. A collective under ZeRO-3."""
        beta = beta_from_staleness(staleness) if self.beta is None else self.beta
        reset = active_fraction is not None and should_reset(active_fraction, self.reset_below)
        if reset:
            beta = 0.0
            self.resets += 1
        averaged = self.exact or [parameter for _, parameter in published(self.model.model)]
        current = (tensor.to(averaged[0].device) for tensor in engine.master_weights())
        self.total_weight = update_ewma(averaged, current, beta, self.total_weight)
        self._round()
        return {"ewma/beta": beta, "ewma/reset": float(reset), "ewma/resets": float(self.resets)}

    @torch.no_grad()
    def _round(self) -> None:
        """Bring the model up to the average, where that is kept apart."""
        if self.exact is not None:
            for (_, parameter), mean in zip(published(self.model.model), self.exact, strict=True):
                parameter.copy_(mean)

    def state_dict(self) -> dict[str, Any]:
        weights = {} if self.exact else {k: v.cpu() for k, v in self.model.state_dict().items()}
        kept = {"weights": weights, "exact": self.exact or []}
        return {**kept, "total_weight": self.total_weight, "resets": self.resets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.exact is None:
            self.model.load_state_dict(state["weights"])
        else:
            self.exact = list(state["exact"])
            self._round()
        self.total_weight, self.resets = float(state["total_weight"]), int(state["resets"])


def average(context: PartContext) -> AveragedPolicy:
    """Return the part of a run whose proximal policy is an average."""
    copy = load_copy(context.config, context.model).to(context.engine.device)
    params = context.objective.params("proximal")
    return AveragedPolicy(copy, **{key: params[key] for key in ("beta", "reset_below") if key in params})
