"""Log-probabilities under the version that sampled each token, which the proximal form `snapshot` reads.

Copies of the weights here (`Snapshots`) are one way to the numbers; extensions have others, which give the same
(`asyncrl/extensions/old_policy`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.extensions import table
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models.checkpoint_form import published
from asyncrl.train.models.policy import PolicyModel
from asyncrl.train.parts.frozen import score
from asyncrl.train.parts.needed_models import load_copy
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import Rows, StepBatch
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import rows_by_version, whole_batch


class PastVersions(StepPart):
    """Scores each token under its own version."""

    name = "snapshots"

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """See `StepPart`."""
        found.tensors["snapshot_logp"] = self.logp(engine, batch, settings)

    def logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """Return on the first rank the log-probabilities of the sampled tokens. A collective."""
        raise NotImplementedError


class KeptVersions(PastVersions):
    """Keeps the weights of each version that the policy comes to."""

    @property
    def versions(self) -> Collection[int]:
        """Those that are kept."""
        raise NotImplementedError

    def remember(self, engine: TrainEngine, version: int) -> None:
        """Keep the current weights as `version`; drop versions that no token of a batch can carry any more. A
        collective."""
        raise NotImplementedError

    def before_run(self, engine: TrainEngine, version: int) -> None:
        """See `StepPart`."""
        if version not in self.versions:
            self.remember(engine, version)

    def after_step(self, engine: TrainEngine, version: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """See `StepPart`."""
        self.remember(engine, version)
        return {}


class Snapshots(KeptVersions):
    """Weights of the last `keep` versions, in host memory, and one model to load them into."""

    def __init__(self, model: PolicyModel, keep: int) -> None:
        self.model = model
        self.keep = keep
        self._weights: dict[int, list[Tensor]] = {}

    @property
    def versions(self) -> Collection[int]:
        """See `KeptVersions`."""
        return self._weights.keys()

    def logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """See `PastVersions`."""
        found = Ragged.full(batch.counts)
        for version, rows in engine.on_first(lambda: rows_by_version(batch)):
            model = None if int(version) == batch.step else self.load(int(version))
            put_version_logp(found, engine, batch, settings, int(version), rows, model)
        return found

    @torch.no_grad()
    def remember(self, engine: TrainEngine, version: int) -> None:
        """Keep the current weights as `version`; drop versions that no token of a batch can carry any more."""
        if not self.keep:
            return
        self._weights[version] = [tensor.cpu().clone() for _, tensor in engine.weights()]
        for old in [v for v in self.versions if v <= version - self.keep - 1]:
            del self._weights[old]

    @torch.no_grad()
    def load(self, version: int) -> PolicyModel:
        """Return the model with a version's weights. Raises `ConfigError` naming what is kept."""
        if version not in self.versions:
            raise ConfigError(
                f"algo.proximal.name: 'snapshot' needs the weights of version {version}; kept: "
                f"{', '.join(map(str, sorted(self.versions))) or 'none'}"
            )
        for (_, parameter), tensor in zip(published(self.model.model), self._weights[version], strict=True):
            parameter.copy_(tensor)
        return self.model

    def state_dict(self) -> dict[str, Any]:
        return {"versions": self._weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weights = dict(state["versions"])


def put_version_logp(
    found: Ragged,
    engine: TrainEngine,
    batch: StepBatch,
    settings: StepSettings,
    version: int,
    rows: list[int],
    model: PolicyModel | None,
) -> None:
    """Put what `model`, None for the trained one, computes of the tokens that `version` sampled in `rows` into `found`,
    on the first rank. A collective."""

    def forward(rows: Rows) -> dict[str, Tensor]:
        if model is None:
            return engine.outputs(rows.token_ids, rows.mask, settings.temperature, extras=rows.extras)
        return score(model, engine, rows, settings.temperature)

    logp = whole_batch(engine, batch, settings, forward, ("logp",), rows)["logp"]
    for row in rows if engine.rank == 0 else ():
        t = batch.row(row)
        mine = torch.from_numpy(t.versions[t.loss_mask] == version)
        found.row(row)[mine] = logp.row(row)[mine]


def snapshots(context: PartContext) -> PastVersions:
    """Return the part of a run: an extension's, or copies of the weights here. A collective."""
    for row in table.rows("past_versions"):
        if row.wanted(context):
            made: PastVersions = row.load()(context)
            return made
    copy = load_copy(context.config, context.model).to(context.engine.device)
    return Snapshots(copy, context.config.buffer.max_staleness)
