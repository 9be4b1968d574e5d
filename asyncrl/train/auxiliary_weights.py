"""Weights that are read and never trained: a reference, a teacher, past policies, their average.

`asyncrl.train.auxiliary_models` runs them over the batch. A reference or teacher offers `outputs`, as the trained
engine does; an average and the snapshots offer the `model` itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.proximal.ewma import beta_from_staleness, should_reset, update_ewma
from asyncrl.errors import ConfigError
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.lora import adapter_off, published
from asyncrl.train.policy import PolicyModel
from asyncrl.train.token_scores import Head, TeacherStates
from asyncrl.train.vision import Placed


class FrozenPolicy:
    """A policy with fixed weights, or refreshed from the trained one every `refresh_every` steps.

    With `offload` its weights are kept in host memory and moved to the device for each pass.
    """

    def __init__(self, model: PolicyModel, offload: bool = False, refresh_every: int = 0) -> None:
        self.model = model
        self.offload = offload
        self.refresh_every = refresh_every
        self.refreshed_at = 0

    def outputs(
        self,
        engine: TrainEngine,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...],
        images: Placed = (),
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does. Not a collective."""
        self.model.to(engine.device)
        on_device = token_ids.to(engine.device), mask.to(engine.device)
        return self.model(*on_device, temperature, want, images=images)

    @torch.no_grad()
    def states(
        self, engine: TrainEngine, token_ids: Tensor, mask: Tensor, direction: str, images: Placed = ()
    ) -> TeacherStates:
        """Return its part of the comparison of whole distributions that the trained model makes."""
        self.model.to(engine.device)
        states = self.outputs(engine, token_ids, mask, 1.0, ("states",), images)["states"]
        return TeacherStates(states, self.model.model.lm_head.forward.logits, direction)

    def release_device(self) -> None:
        """Move an offloaded model back to host memory. Call after the step's passes."""
        if self.offload:
            self.model.to("cpu")

    @torch.no_grad()
    def after_step(self, engine: TrainEngine, version: int) -> None:
        """Copy the trained weights when due. A collective under ZeRO-3."""
        if self.refresh_every and version % self.refresh_every == 0:
            copy_weights(self.model, engine)
            self.refreshed_at = version

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the weights only once they differ from the file they came from."""
        weights = {k: v.cpu() for k, v in self.model.state_dict().items()} if self.refreshed_at else {}
        return {"refreshed_at": self.refreshed_at, "weights": weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.refreshed_at = int(state["refreshed_at"])
        if state["weights"]:
            self.model.load_state_dict(state["weights"])


class DividedPolicy:
    """A policy with fixed weights that are spread over the ranks, as those of the trained one. Used as `FrozenPolicy`
    is."""

    def __init__(self, reading: Any) -> None:
        self.reading = reading
        """Its DeepSpeed engine (`asyncrl.train.deepspeed_engine.engine_for_reading`)."""
        self.projection: Head | None = None
        """A whole copy of its vocabulary projection, once whole distributions were asked for: the policy's passes use
        it chunk by chunk, as often as each rank needs."""

    @torch.no_grad()
    def outputs(
        self,
        engine: TrainEngine,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...],
        images: Placed = (),
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does. A collective."""
        on_device = token_ids.to(engine.device), mask.to(engine.device)
        return self.reading(*on_device, temperature, want, images=images)

    @torch.no_grad()
    def states(
        self, engine: TrainEngine, token_ids: Tensor, mask: Tensor, direction: str, images: Placed = ()
    ) -> TeacherStates:
        """Return what `FrozenPolicy.states` does. A collective."""
        states = self.outputs(engine, token_ids, mask, 1.0, ("states",), images)["states"]
        if self.projection is None:
            lm_head = self.reading.module.model.lm_head
            self.projection = lm_head(states[:0], lambda *_: lm_head.forward.copy())
        return TeacherStates(states, self.projection.logits, direction)

    def release_device(self) -> None:
        """Do nothing: a rank has its share alone."""


class BasePolicy:
    """The trained policy with its adapter off: a reference that needs no copy. Used as `FrozenPolicy` is."""

    def outputs(
        self,
        engine: TrainEngine,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...],
        images: Placed = (),
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does, of the base model. Without gradient; a collective under ZeRO-3."""
        with torch.no_grad(), adapter_off(engine.engine.module.model):
            return engine.outputs(token_ids, mask, temperature, want, images=images)

    def release_device(self) -> None:
        """Do nothing: it has no weights of its own."""


class AveragedPolicy:
    """The exponentially weighted average of past policies, the proximal policy of PPO-EWMA.

    `beta` None follows the measured staleness of each batch (`beta_from_staleness`). The average returns to the
    current policy when fewer than `reset_below` of the tokens carry a gradient.

    It is kept in float32, from the optimizer's own weights. A `model` of another type is its rounded form, as the
    trained model is that of the optimizer's; the average itself is then in host memory.
    """

    def __init__(self, model: PolicyModel, beta: float | None = None, reset_below: float = 0.9) -> None:
        self.model = model
        self.beta = beta
        self.reset_below = reset_below
        self.total_weight = 1.0
        self.resets = 0
        weights = [parameter.detach() for _, parameter in published(model.model)]
        rounded = any(weight.dtype != torch.float32 for weight in weights)
        self.exact = [weight.to("cpu", torch.float32) for weight in weights] if rounded else None

    @torch.no_grad()
    def after_step(
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


class Snapshots:
    """Weights of the last `keep` versions, in host memory, and one model to load them into."""

    def __init__(self, model: PolicyModel, keep: int) -> None:
        self.model = model
        self.keep = keep
        self.versions: dict[int, list[Tensor]] = {}

    @torch.no_grad()
    def remember(self, engine: TrainEngine, version: int) -> None:
        """Keep the current weights as `version`; drop versions that no token of a batch can carry any more."""
        if not self.keep:
            return
        self.versions[version] = [tensor.cpu().clone() for _, tensor in engine.weights()]
        for old in [v for v in self.versions if v <= version - self.keep - 1]:
            del self.versions[old]

    @torch.no_grad()
    def load(self, version: int) -> PolicyModel:
        """Return the model with a version's weights. Raises `ConfigError` naming what is kept."""
        if version not in self.versions:
            raise ConfigError(
                f"algo.proximal.name: 'snapshot' needs the weights of version {version}; kept: "
                f"{', '.join(map(str, sorted(self.versions))) or 'none'}"
            )
        for (_, parameter), tensor in zip(published(self.model.model), self.versions[version], strict=True):
            parameter.copy_(tensor)
        return self.model

    def state_dict(self) -> dict[str, Any]:
        return {"versions": self.versions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.versions = dict(state["versions"])


@torch.no_grad()
def copy_weights(model: PolicyModel, engine: TrainEngine) -> None:
    """Make `model` equal to the trained policy. A collective under ZeRO-3."""
    for (_, parameter), (_, tensor) in zip(published(model.model), engine.weights(), strict=True):
        parameter.copy_(tensor.to(parameter.device))
