"""Policies that are read and never trained: a whole copy, one that is spread over the ranks, the base of an adapter.

Each offers `outputs`, as the trained engine does, and `logp` over the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.data.token_extras.table import shown_to_all
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.checkpoint_form import form_of, published
from asyncrl.train.models.policy import NO_EXTRAS, Extras, PolicyModel
from asyncrl.train.models.token_scores import Head, Projection
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import Rows, StepBatch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.whole_batch import whole_batch


class ReadPolicy:
    """A policy whose log-probabilities are read, whatever its weights lie in."""

    def outputs(
        self,
        engine: TrainEngine,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...],
        extras: Extras = NO_EXTRAS,
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does."""
        raise NotImplementedError

    def logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """Return on the first rank the log-probabilities of the sampled tokens, and give up the device. A
        collective."""

        def forward(rows: Rows) -> dict[str, Tensor]:
            # Another policy than the one that sampled: it does not follow what that one did.
            extras = shown_to_all(rows.extras)
            return self.outputs(engine, rows.token_ids, rows.mask, settings.temperature, (), extras)

        logp = whole_batch(engine, batch, settings, forward, ("logp",))["logp"]
        self.release_device()
        return logp

    def release_device(self) -> None:
        """Move what was on the device for a pass alone back to host memory."""


class FrozenPolicy(ReadPolicy):
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
        extras: Extras = NO_EXTRAS,
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does. Not a collective."""
        self.model.to(engine.device)
        on_device = token_ids.to(engine.device), mask.to(engine.device)
        return self.model(*on_device, temperature, want, extras=extras)

    @torch.no_grad()
    def states(
        self, engine: TrainEngine, token_ids: Tensor, mask: Tensor, extras: Extras
    ) -> tuple[Tensor, Projection]:
        """Return the hidden state [M,H] before each sampled token, and the vocabulary projection."""
        self.model.to(engine.device)
        states = self.outputs(engine, token_ids, mask, 1.0, ("states",), extras)["states"]
        return states, self.model.model.lm_head.forward.logits

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


class DividedPolicy(ReadPolicy):
    """A policy with fixed weights that are spread over the ranks, as those of the trained one. Used as `FrozenPolicy`
    is."""

    def __init__(self, reading: Any) -> None:
        self.reading = reading
        """Its DeepSpeed engine (`asyncrl.train.engine.deepspeed_engine.engine_for_reading`)."""
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
        extras: Extras = NO_EXTRAS,
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does. A collective."""
        on_device = token_ids.to(engine.device), mask.to(engine.device)
        return self.reading(*on_device, temperature, want, extras=extras)

    @torch.no_grad()
    def states(
        self, engine: TrainEngine, token_ids: Tensor, mask: Tensor, extras: Extras
    ) -> tuple[Tensor, Projection]:
        """Return what `FrozenPolicy.states` does. A collective."""
        states = self.outputs(engine, token_ids, mask, 1.0, ("states",), extras)["states"]
        if self.projection is None:
            lm_head = self.reading.module.model.lm_head
            self.projection = lm_head(states[:0], lambda *_: lm_head.forward.copy())
        return states, self.projection.logits


class BasePolicy(ReadPolicy):
    """The trained policy with its adapter off: a reference that needs no copy. Used as `FrozenPolicy` is."""

    def outputs(
        self,
        engine: TrainEngine,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...],
        extras: Extras = NO_EXTRAS,
    ) -> dict[str, Tensor]:
        """Return what `PolicyModel.forward` does, of the base model. Without gradient; a collective under ZeRO-3."""
        model = engine.engine.module.model
        with torch.no_grad(), form_of(model).untrained(model):
            return engine.outputs(token_ids, mask, temperature, want, extras=extras)


def score(model: PolicyModel, engine: TrainEngine, rows: Rows, temperature: float) -> dict[str, Tensor]:
    """Return what a copy of the policy computes of rows, on the engine's device."""
    return model(
        rows.token_ids.to(engine.device), rows.mask.to(engine.device), temperature, extras=rows.extras
    )


@torch.no_grad()
def copy_weights(model: PolicyModel, engine: TrainEngine) -> None:
    """Make `model` equal to the trained policy. A collective under ZeRO-3."""
    for (_, parameter), (_, tensor) in zip(published(model.model), engine.weights(), strict=True):
        parameter.copy_(tensor.to(parameter.device))
