"""The models besides the policy that an objective reads, as parts of its steps: see `asyncrl.train.step.step_part`.

Each costs a forward pass over the batch, so it is there only if the objective reads it, and is run before the first
optimizer step of the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asyncrl.algo.batch_passes import BatchPasses
from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.objective import Objective
from asyncrl.errors import ConfigError
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.part_table import read_by
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.serve_rows import Plan
from asyncrl.train.step.step_batch import StepBatch, sampled_tokens
from asyncrl.train.step.step_part import StepPart
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.whole_batch import whole_batch

if TYPE_CHECKING:
    from asyncrl.train.models.token_scores import Compared
    from asyncrl.train.step.gradient import Step
    from asyncrl.train.step.step_batch import Rows


class AuxiliaryModels:
    """The parts of a run's steps, by their names in the order in which they are called.

    Raises `ConfigError` where the objective reads a part that is not there.
    """

    def __init__(self, objective: Objective, parts: Iterable[StepPart] = ()) -> None:
        self.objective = objective
        self.parts: dict[str, StepPart] = {part.name: part for part in parts}
        for one in read_by(objective):
            if one.name not in self.parts:
                raise ConfigError(f"the objective needs {one.name!r}, but no such model was loaded")

    @property
    def trained_engines(self) -> dict[str, TrainEngine]:
        """The engines that are trained besides the policy's, by the names under which their states are kept."""
        return {name: part.engine for name, part in self.parts.items() if part.engine is not None}

    @property
    def steps_ahead(self) -> int:
        """Rounds of optimizer steps over a batch before those of the policy."""
        return max((part.steps_ahead for part in self.parts.values()), default=0)

    @property
    def on_policy(self) -> bool:
        """Whether a part trains the policy's trunk, too."""
        return any(part.on_policy for part in self.parts.values())

    @property
    def gives(self) -> tuple[str, ...]:
        """See `StepPart.gives`."""
        return tuple(name for part in self.parts.values() for name in part.gives)

    def compared(self, step: Step, micro: Rows) -> Compared | None:
        """See `StepPart.compared`; one part at most asks for it."""
        found = (part.compared(step, micro) for part in self.parts.values())
        return next((one for one in found if one is not None), None)

    def learn_alone(self, version: int) -> bool:
        """Return whether the policy rests in the step from `version`."""
        return any(part.learns_alone(version) for part in self.parts.values())

    def reads(self, policy_learns: bool | None = None) -> tuple[str, ...]:
        """See `StepPart.reads`."""
        return tuple(name for part in self.parts.values() for name in part.reads(policy_learns))

    def step_tensors(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, num_minibatches: int
    ) -> StepTensors:
        """Compute what the objective reads over the whole batch. A collective."""
        found = StepTensors()
        passes = BatchPasses.of(self.objective.settings, num_minibatches)
        if passes.policy:
            self._policy_pass(engine, batch, settings, passes.extras, found)
        for part in self.parts.values():
            part.score(engine, batch, settings, found)
        return found

    def _policy_pass(
        self,
        engine: TrainEngine,
        batch: StepBatch,
        settings: StepSettings,
        extras: tuple[str, ...],
        found: StepTensors,
    ) -> None:
        names = ("logp", *extras, *self.reads())
        computed = whole_batch(
            engine, batch, settings,
            lambda rows: engine.outputs(
                rows.token_ids, rows.mask, settings.temperature, names, extras=rows.extras
            ),
            names,
        )  # fmt: skip
        found.policy_logp = computed["logp"]
        found.tensors |= {name: computed[name] for name in extras}
        if not self.objective.needs_proximal or "step_start" in self.objective.needs:
            found.tensors["proximal_logp"] = computed["logp"]
        for part in self.parts.values():
            part.take(computed, found)

    def after_step_ahead(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """Compute anew what a round of steps ahead of the policy's has changed. A collective."""
        for part in self.parts.values():
            if part.steps_ahead:
                part.score(engine, batch, settings, found)

    def whole_inputs(
        self, batch: StepBatch, found: StepTensors, rows: list[int], logp: Ragged | None = None
    ) -> LossInputs:
        """Return rows as a loss sees them before the first step: the policy is the proximal one, or `logp`.

        T counts sampled tokens. On the first rank.
        """
        sampled = sampled_tokens(batch, rows)
        start = sampled.behavior_logp if found.policy_logp is None else found.policy_logp.padded(rows)
        named: dict[str, Any] = {name: values.padded(rows) for name, values in found.for_loss().items()}
        named.setdefault("proximal_logp", start)
        entropy = found.tensors.get("entropy")
        return LossInputs.of(
            named
            | {
                "logp": start if logp is None else logp.padded(rows),
                "behavior_logp": sampled.behavior_logp,
                "mask": sampled.mask,
                "versions": sampled.versions.long(),
                "turn_ids": sampled.turn_ids.long(),
                "scores": batch.rewards[rows],
                "group": batch.group[rows],
                "current_version": batch.step,
                "entropy": None if entropy is None else entropy.padded(rows),
                "statistics": found.statistics,
            }
        )

    def serve(self, engine: TrainEngine, plan: Plan, tensors: StepTensors) -> None:
        """See `StepPart.serve`."""
        for part in self.parts.values():
            part.serve(engine, plan, tensors)

    def before_run(self, engine: TrainEngine, version: int) -> None:
        """See `StepPart.before_run`."""
        for part in self.parts.values():
            part.before_run(engine, version)

    def before_update(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> None:
        """See `StepPart.before_update`."""
        for part in self.parts.values():
            part.before_update(engine, batch, settings)

    def release(self) -> None:
        """See `StepPart.release`."""
        for part in self.parts.values():
            part.release()

    def after_step(self, engine: TrainEngine, version: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Have parts follow the policy to `version`; return their metrics."""
        found: dict[str, float] = {}
        for part in self.parts.values():
            found |= part.after_step(engine, version, metrics)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values that a checkpoint keeps and `load_state_dict` takes back."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, part in state.items():
            if name in self.parts:
                self.parts[name].load_state_dict(part)
