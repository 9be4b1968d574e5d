"""The models besides the policy that an objective reads: a reference, a teacher, past policies, a critic.

Each costs a forward pass over the batch, so it is run only if the objective reads it, before the first optimizer step
of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.algo.batch_passes import BatchPasses
from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.objective import Objective
from asyncrl.errors import ConfigError
from asyncrl.train.answer_probability import probabilities, probe_batch
from asyncrl.train.auxiliary_weights import (
    AveragedPolicy,
    BasePolicy,
    DividedPolicy,
    FrozenPolicy,
    Snapshots,
)
from asyncrl.train.critic import CRITIC, Critic
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.old_policy import OldPolicies
from asyncrl.train.policy import VALUES, PolicyModel
from asyncrl.train.ragged import Ragged
from asyncrl.train.router_replay import replaying
from asyncrl.train.scored_versions import ScoredVersions
from asyncrl.train.scoring import EngineScorer
from asyncrl.train.self_teacher import SelfTeacher, Shown
from asyncrl.train.serve_rows import gather_values, plan_rows, serve_rows, share_batch
from asyncrl.train.step_batch import Rows, StepBatch, pad_rows, sampled_tokens
from asyncrl.train.step_settings import StepSettings

Forward = Callable[[Rows], dict[str, Tensor]]
FOR_ADVANTAGES = {
    "proximal_logp": "old_logp",
    "reference_logp": "reference_logp",
    "entropy": "entropy",
    "sum_pi_squared": "sum_pi_squared",
    "old_values": "values",
}
"""What `AdvantageBatch` calls the tensors that losses also know."""
FOR_LOSS = (
    "proximal_logp", "reference_logp", "teacher_logp", "snapshot_logp", "advantages", "clip_scale",
    "old_values", "returns",
)  # fmt: skip


@dataclass(slots=True)
class StepTensors:
    """Named numbers over the whole batch. They are on the first rank; on the others rows are empty."""

    tensors: dict[str, Ragged] = field(default_factory=dict)
    """Of the sampled tokens, by their `LossInputs` name, or that of `AdvantageBatch` where a loss has none."""
    rows: dict[str, Tensor] = field(default_factory=dict)
    """[B], or [B,K] by turn, by their `AdvantageBatch` name."""
    statistics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars of the whole step that some corrections read (`Objective.step_statistics`); on every rank."""
    zero_advantage: frozenset[int] = frozenset()
    """Rows whose advantages are all 0; on every rank."""
    policy_logp: Ragged | None = None
    """Of the policy at the start of the step, where it was computed; the proximal one may be another."""
    shown: Shown | None = None
    """What the policy reads as its own teacher."""

    def for_advantages(self, rows: list[int]) -> dict[str, Tensor]:
        """Return the fields of `AdvantageBatch` for `rows`, tokens as [len(rows),S]."""
        named = {
            FOR_ADVANTAGES[name]: values.padded(rows)
            for name, values in self.tensors.items()
            if name in FOR_ADVANTAGES
        }
        return named | {name: values[rows] for name, values in self.rows.items()}

    def for_loss(self) -> dict[str, Ragged]:
        """Return the fields of `LossInputs`."""
        return {name: values for name, values in self.tensors.items() if name in FOR_LOSS}


@dataclass(slots=True)
class AuxiliaryModels:
    """The models besides the policy, each present when the objective needs it."""

    objective: Objective
    reference: FrozenPolicy | DividedPolicy | BasePolicy | EngineScorer | None = None
    teacher: FrozenPolicy | DividedPolicy | EngineScorer | SelfTeacher | None = None
    average: AveragedPolicy | None = None
    snapshots: Snapshots | OldPolicies | ScoredVersions | None = None
    critic: Critic | None = None

    def __post_init__(self) -> None:
        present = {
            "reference": self.reference,
            "teacher": self.teacher,
            "average": self.average,
            "snapshots": self.snapshots,
            "values": self.critic,
        }
        wanted = self.objective.needs | ({"teacher"} if self.objective.needs_teacher else set())
        for name, model in present.items():
            if name in wanted and model is None:
                raise ConfigError(f"the objective needs {name!r}, but no such model was loaded")

    @property
    def trained_engines(self) -> dict[str, TrainEngine]:
        """The engines that are trained besides the policy's, by the names under which their states are kept."""
        own = None if self.critic is None else self.critic.engine
        return {} if own is None else {CRITIC: own}

    def step_tensors(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, num_minibatches: int
    ) -> StepTensors:
        """Compute what the objective reads over the whole batch. A collective."""
        passes = BatchPasses.of(self.objective.settings, num_minibatches)
        found = StepTensors()
        if passes.policy:
            self._policy_pass(engine, batch, settings, passes, found)
        self._proximal(engine, batch, settings, found)
        self.critic_pass(engine, batch, settings, found)
        if isinstance(self.teacher, SelfTeacher):
            found.shown = self.teacher.show(engine, batch)
        for name, model in (("reference", self.reference), ("teacher", self.teacher)):
            if model is None or (name == "teacher" and "teacher_logits" in self.objective.needs):
                continue
            if isinstance(model, SelfTeacher):
                assert found.shown is not None
                found.tensors["teacher_logp"] = self._self_taught(model, engine, found.shown, settings)
            else:
                found.tensors[f"{name}_logp"] = self._frozen_logp(model, engine, batch, settings)
        if passes.answers:
            found.rows["answer_probability"] = self._answer_probability(engine, batch, settings)
        if passes.score_norms:
            found.rows["score_norms"] = score_norms(engine, batch, settings)
        return found

    def critic_pass(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """Compute into `found` what a critic with a trunk of its own says. A collective."""
        if self.critic is not None and self.critic.engine is not None:
            critic = self.critic

            def values(rows: Rows) -> dict[str, Tensor]:
                return critic.outputs(engine, rows.token_ids, rows.mask, rows.images)

            self._keep_values(found, whole_batch(engine, batch, settings, values, VALUES))

    def _policy_pass(
        self,
        engine: TrainEngine,
        batch: StepBatch,
        settings: StepSettings,
        passes: BatchPasses,
        found: StepTensors,
    ) -> None:
        shared = self.critic if passes.values and self.critic is not None and self.critic.shared else None
        names = ("logp", *passes.extras, *(VALUES if shared is not None else ()))
        computed = whole_batch(
            engine, batch, settings,
            lambda rows: engine.outputs(
                rows.token_ids, rows.mask, settings.temperature, names, images=rows.images
            ),
            names,
        )  # fmt: skip
        found.policy_logp = computed["logp"]
        found.tensors |= {name: computed[name] for name in passes.extras}
        if not self.objective.needs_proximal or "step_start" in self.objective.needs:
            found.tensors["proximal_logp"] = computed["logp"]
        if "values" in computed:
            self._keep_values(found, computed)

    def _keep_values(self, found: StepTensors, computed: dict[str, Ragged]) -> None:
        """Keep what a critic has computed."""
        found.tensors["old_values"] = computed["values"]
        found.rows["bootstrap_values"] = computed["end_values"].values

    def _proximal(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        if self.average is not None:
            model = self.average.model
            found.tensors["proximal_logp"] = whole_batch(
                engine, batch, settings,
                lambda rows: score(model, engine, rows, settings.temperature), ("logp",),
            )["logp"]  # fmt: skip
        if self.snapshots is not None:
            found.tensors["snapshot_logp"] = self._snapshot_logp(engine, batch, settings)

    def _answer_probability(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Tensor:
        asked = probe_batch(batch) if engine.rank == 0 else None
        probes = share_batch(engine, asked[0] if asked else None)
        logp = whole_batch(
            engine,
            probes,
            settings,
            lambda rows: engine.outputs(rows.token_ids, rows.mask, settings.temperature, images=rows.images),
            ("logp",),
        )["logp"]
        return probabilities(batch, asked[1], logp) if asked else torch.zeros(0)

    def _snapshot_logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """Score each token with the version that sampled it."""
        snapshots = self.snapshots
        assert snapshots is not None
        if isinstance(snapshots, OldPolicies):
            return snapshots.score(engine, batch)
        result = Ragged.full(batch.counts)
        by_version = {int(version): rows for version, rows in engine.on_first(lambda: rows_by_version(batch))}
        if isinstance(snapshots, ScoredVersions):
            # The others were scored before their weights changed.
            by_version = {version: rows for version, rows in by_version.items() if version == batch.step}
            if engine.rank == 0:
                result = snapshots.find(batch)
        for version, rows in by_version.items():
            model = None
            if version != batch.step and isinstance(snapshots, Snapshots):
                model = snapshots.load(version)

            def forward(rows: Rows, model: PolicyModel | None = model) -> dict[str, Tensor]:
                if model is None:
                    return engine.outputs(rows.token_ids, rows.mask, settings.temperature, images=rows.images)
                return score(model, engine, rows, settings.temperature)

            logp = whole_batch(engine, batch, settings, forward, ("logp",), rows)["logp"]
            for row in rows if engine.rank == 0 else ():
                t = batch.row(row)
                mine = torch.from_numpy(t.versions[t.loss_mask] == version)
                result.row(row)[mine] = logp.row(row)[mine]
        if isinstance(snapshots, ScoredVersions) and engine.rank == 0:
            snapshots.keep_scores(batch, result)
        return result

    def _frozen_logp(
        self,
        model: FrozenPolicy | DividedPolicy | BasePolicy | EngineScorer,
        engine: TrainEngine,
        batch: StepBatch,
        settings: StepSettings,
    ) -> Ragged:
        if isinstance(model, EngineScorer):
            scored = [model.score(batch) if engine.rank == 0 else Ragged.full(np.zeros_like(batch.counts))]
            # The others wait here for as long as the server takes.
            engine.barrier()
            return scored[0]

        def forward(rows: Rows) -> dict[str, Tensor]:
            # Another policy than the one that sampled: its own routers choose.
            with replaying(None):
                return model.outputs(engine, rows.token_ids, rows.mask, settings.temperature, (), rows.images)

        logp = whole_batch(engine, batch, settings, forward, ("logp",))["logp"]
        model.release_device()
        return logp

    def _self_taught(
        self, teacher: SelfTeacher, engine: TrainEngine, shown: Shown, settings: StepSettings
    ) -> Ragged:
        """Score the rows that have a teacher; the others are 0."""

        def forward(rows: Rows) -> dict[str, Tensor]:
            return teacher.outputs(engine, rows, settings.temperature)

        return whole_batch(engine, shown.batch, settings, forward, ("logp",), shown.taught)["logp"]

    def whole_inputs(
        self, batch: StepBatch, found: StepTensors, rows: list[int], logp: Ragged | None = None
    ) -> LossInputs:
        """Return rows as a loss sees them before the first step: the policy is the proximal one, or `logp`.

        T counts sampled tokens. On the first rank.
        """
        sampled = sampled_tokens(batch, rows)
        start = sampled.behavior_logp if found.policy_logp is None else found.policy_logp.padded(rows)
        extras: dict[str, Any] = {name: values.padded(rows) for name, values in found.for_loss().items()}
        extras.setdefault("proximal_logp", start)
        entropy = found.tensors.get("entropy")
        return LossInputs(
            logp=start if logp is None else logp.padded(rows), behavior_logp=sampled.behavior_logp,
            mask=sampled.mask, versions=sampled.versions.long(), turn_ids=sampled.turn_ids.long(),
            scores=batch.rewards[rows], group=batch.group[rows], current_version=batch.step,
            entropy=None if entropy is None else entropy.padded(rows), statistics=found.statistics, **extras,
        )  # fmt: skip

    def before_run(self, engine: TrainEngine, version: int) -> None:
        """Snapshot the weights the run starts from. A collective under ZeRO-3."""
        if isinstance(self.snapshots, ScoredVersions):
            self.snapshots.scored_version = version - 1
        elif self.snapshots is not None and version not in self.snapshots.versions:
            self.snapshots.remember(engine, version)

    def before_update(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> None:
        """Score what the version of the step has sampled, before the first change of its weights; then do nothing until
        the next step. A collective."""
        snapshots = self.snapshots
        if not isinstance(snapshots, ScoredVersions) or snapshots.scored_version == batch.step:
            return
        snapshots.scored_version = batch.step
        found: list[StepBatch] = []

        def unscored() -> int:
            found.append(snapshots.unscored(batch))
            return found[0].num_rows

        if not engine.on_first(unscored):
            return
        rows = share_batch(engine, found[0] if found else None)

        def forward(some: Rows) -> dict[str, Tensor]:
            return engine.outputs(some.token_ids, some.mask, settings.temperature)

        logprobs = whole_batch(engine, rows, settings, forward, ("logp",))["logp"]
        if engine.rank == 0:
            snapshots.keep_scores(rows, logprobs)
            snapshots.scored(rows)

    def after_step(self, engine: TrainEngine, version: int, metrics: dict[str, float]) -> dict[str, float]:
        """Bring averages, snapshots and refreshed references up to `version`; return their metrics."""
        found: dict[str, float] = {}
        if self.average is not None:
            clipped = metrics.get("clip_fraction")
            active = None if clipped is None else 1.0 - clipped
            found |= self.average.after_step(engine, metrics.get("lag/mean", 0.0), active)
        if isinstance(self.snapshots, ScoredVersions):
            found |= self.snapshots.after_step(version)
        elif self.snapshots is not None:
            self.snapshots.remember(engine, version)
        if isinstance(self.reference, FrozenPolicy):
            self.reference.after_step(engine, version)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that a checkpoint keeps and `load_state_dict` takes back."""
        kept = {
            "reference": self.reference,
            "average": self.average,
            "snapshots": self.snapshots,
        }
        kinds = FrozenPolicy | AveragedPolicy | Snapshots | OldPolicies | ScoredVersions
        return {name: model.state_dict() for name, model in kept.items() if isinstance(model, kinds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in state.items():
            model = getattr(self, name)
            if model is not None:
                model.load_state_dict(part)


def score(model: PolicyModel, engine: TrainEngine, rows: Rows, temperature: float) -> dict[str, Tensor]:
    """Return what another model than the trained one computes of rows, on the engine's device."""
    return model(
        rows.token_ids.to(engine.device), rows.mask.to(engine.device), temperature, images=rows.images
    )


@torch.no_grad()
def whole_batch(
    engine: TrainEngine,
    batch: StepBatch,
    settings: StepSettings,
    forward: Forward,
    names: tuple[str, ...],
    rows: list[int] | None = None,
) -> dict[str, Ragged]:
    """Return on the first rank `forward`'s outputs for the sampled tokens of all rows, or of those given; 0 for others.

    Each rank computes its share. What ends in `end_values` is one number a row, `states` the width of the
    model for each token, one after the other.
    """
    plan = plan_rows(engine, batch, settings.micro_batch_tokens, rows)
    serve_rows(engine, batch, plan)
    computed: dict[str, list[Tensor]] = {name: [] for name in names}
    for part in plan[engine.share]:
        padded = pad_rows(batch, part)
        engine.progress.mark()
        with replaying(padded.routed_experts):
            outputs = forward(padded)
        for name in names if part else ():
            value = outputs[name].float()
            if name == "states":
                value = value.flatten()
            computed[name].append(value if value.ndim == 1 else value[padded.mask.to(value.device)])
    ends = {name: parts for name, parts in computed.items() if name.endswith("end_values")}
    tokens = {name: parts for name, parts in computed.items() if name not in ends and name != "states"}
    found = gather_values(engine, batch.counts, plan, tokens)
    if "states" in computed:
        counts = batch.counts * engine.hidden_size
        found |= gather_values(engine, counts, plan, {"states": computed["states"]})
    if ends:
        found |= gather_values(engine, np.ones_like(batch.counts), plan, ends)
    return found


def rows_by_version(batch: StepBatch) -> list[tuple[int, list[int]]]:
    """Return the versions that sampled tokens of a batch, in order, each with the rows it is in."""
    found: dict[int, list[int]] = {}
    for row, t in enumerate(batch.trajectories):
        for version in np.unique(t.versions[t.loss_mask]).tolist():
            found.setdefault(version, []).append(row)
    return sorted(found.items())


def score_norms(engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Tensor:
    """Return [B] norms of the gradient of each trajectory's log-probability: one backward pass each.

    Raises `ConfigError` under ZeRO-3, where no rank holds whole parameters.
    """
    if engine.stage == 3:
        raise ConfigError(
            "train.zero_stage: must be below 3 where algo.advantage reads the norm of each trajectory's gradient"
        )
    module = engine.engine.module
    parameters = [p for p in module.model.parameters() if p.requires_grad]
    plan = [[[row] for row in range(r, batch.num_rows, engine.num_ranks)] for r in range(engine.num_ranks)]
    serve_rows(engine, batch, plan)
    norms = torch.zeros(batch.num_rows, device=engine.device)
    for (row,) in plan[engine.rank]:
        padded = pad_rows(batch, [row])
        with replaying(padded.routed_experts):
            logp = score(module, engine, padded, settings.temperature)
        grads = torch.autograd.grad(logp["logp"].sum(), parameters, allow_unused=True)
        norms[row] = torch.nn.utils.get_total_norm([g for g in grads if g is not None])
    engine.all_reduce(norms)
    return norms.cpu()
