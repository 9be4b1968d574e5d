"""Log-probabilities of other policies than the current one: proximal, reference.

An anchor costs a forward pass over the batch, so each is computed only when the objective reads it, before
the first optimizer step of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.objective import Objective
from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.errors import ConfigError
from asyncrl.train.batch import StepBatch, pad_rows
from asyncrl.train.engine import TrainEngine
from asyncrl.train.policy import PolicyModel

READ_OLD_LOGP = ("vcpo", "vtrace", "optimal_token_baseline")
"""Advantage estimators that read the proximal log-probabilities."""

Forward = Callable[[Tensor, Tensor, float], Tensor]


@dataclass(slots=True)
class TokenTensors:
    """Named [B,T] tensors over the whole batch, the same on every rank."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars of the whole step that some corrections read (`Objective.batch_statistics`)."""

    def for_advantages(self) -> dict[str, Tensor]:
        """Return what `AdvantageBatch` calls them."""
        names = {"proximal_logp": "old_logp", "reference_logp": "reference_logp"}
        return {names[name]: tensor for name, tensor in self.tensors.items() if name in names}

    def rows(self, indices: list[int], width: int, device: torch.device) -> dict[str, Tensor]:
        """Return the rows of a micro-batch; zeros for an empty one."""
        if not indices:
            return {name: torch.zeros(1, width, device=device) for name in self.tensors}
        return {name: tensor[indices, :width].to(device) for name, tensor in self.tensors.items()}


class Anchors:
    """Holds the frozen models anchors need and computes their log-probabilities."""

    def __init__(self, objective: Objective, reference: PolicyModel | None = None) -> None:
        if objective.needs_proximal in ("snapshot", "ewma"):
            raise ConfigError(
                f"algo.proximal.name: {objective.needs_proximal!r} needs copies of past weights, which this trainer "
                "does not keep; allowed: recompute, loglinear, linear, behavior"
            )
        if objective.needs_reference and reference is None:
            raise ConfigError("the objective has a reference KL, but no reference model was loaded")
        self.reference = reference

    def token_tensors(
        self, engine: TrainEngine, objective: Objective, batch: StepBatch, settings
    ) -> TokenTensors:
        """Compute the anchors `objective` reads over the whole batch. A collective."""
        found = TokenTensors()
        before_loss = (
            settings.num_minibatches > 1
            or objective.needs_batch_statistics
            or objective.needs_reference
            or objective.settings["advantage"]["name"] in READ_OLD_LOGP
        )
        recompute = before_loss and objective.needs_proximal in ("recompute", "none")
        if recompute:
            found.tensors["proximal_logp"] = whole_batch_logp(
                engine, batch, settings, lambda ids, mask, t: engine.logp(ids, mask, t)[0]
            )
        if objective.needs_batch_statistics:
            rows = pad_rows(batch, range(len(batch.trajectories)))
            proximal = found.tensors.get("proximal_logp", rows.behavior_logp)
            whole = LossInputs(
                logp=proximal, proximal_logp=proximal, behavior_logp=rows.behavior_logp, mask=rows.mask,
                versions=rows.versions, current_version=batch.step,
            )  # fmt: skip
            found.statistics = objective.batch_statistics(whole)
        if self.reference is not None:
            reference = self.reference
            found.tensors["reference_logp"] = whole_batch_logp(
                engine,
                batch,
                settings,
                lambda ids, mask, t: reference(ids.to(engine.device), mask.to(engine.device), t)[0],
            )
        return found


@torch.no_grad()
def whole_batch_logp(engine: TrainEngine, batch: StepBatch, settings, forward: Forward) -> Tensor:
    """Return `forward`'s log-probabilities for all rows [B,T]; each rank computes its share."""
    result = torch.zeros(
        len(batch.trajectories), max(batch.lengths), dtype=torch.float32, device=engine.device
    )
    for chosen in plan_micro_batches(batch.lengths, settings.micro_batch_tokens, engine.num_ranks)[
        engine.rank
    ]:
        rows = pad_rows(batch, chosen)
        logp = forward(rows.token_ids, rows.mask, settings.temperature)
        if chosen:
            result[chosen, : logp.shape[1]] = logp.float()
    engine.all_reduce(result)
    return result.cpu()
