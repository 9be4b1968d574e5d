"""What optional features do in a training step: one protocol, and the step knows no feature by name.

    score            score          compute numbers over the whole batch, before its first optimizer step
                     take           take what the policy's own pass computed for the part
    ahead            steps_ahead    train the part alone, before the policy is
    micro-batch      serve          give the ranks further rows
                     compared       have the policy's distributions compared with others
                     loss           add a loss, on an engine of the part's own or on the policy's trunk
    optimizer step   before_update  read the weights that are about to change
                     update         take the part's own optimizer step
    after            after_step     follow the policy to its new version

A part is made where the objective reads it (`asyncrl.train.step.part_table`). Its state is part of every checkpoint
under its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from asyncrl.algo.inputs import LossInputs, Totals
from asyncrl.algo.metrics import Metrics
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors

if TYPE_CHECKING:
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.models.token_scores import Compared
    from asyncrl.train.step.gradient import Step
    from asyncrl.train.step.serve_rows import Plan
    from asyncrl.train.step.step_batch import Rows, StepBatch


class StepPart:
    """Does nothing. Every rank has the same parts and calls their methods in the same order, so each may be a
    collective."""

    name: ClassVar[str] = ""
    """By which it is found, and of its state in checkpoints."""
    engine: TrainEngine | None = None
    """What the part trains besides the policy's; None where it trains nothing or the policy's trunk."""
    on_policy: bool = False
    """Whether its loss is added to the policy's, whose trunk it trains too."""
    steps_ahead: int = 0
    """Rounds of optimizer steps over the batch in which parts learn alone, before those of the policy."""
    gives: tuple[str, ...] = ()
    """Extras of `LossInputs` that the policy's forward pass computes by `compared`."""

    # A run.

    def before_run(self, engine: TrainEngine, version: int) -> None:
        """Take in the weights that the run starts from."""

    def after_step(
        self, engine: TrainEngine, version: int, metrics: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Follow the policy, which has come to `version`; return metrics. metrics: of the step."""
        return {}

    def state_dict(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps, tensors and plain values only; None for a part without a state."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    # A step.

    def reads(self, policy_learns: bool | None = None) -> tuple[str, ...]:
        """Return what the policy's forward pass is to compute for the part.

        policy_learns: whether the policy does in this micro-batch; None in the pass over the whole batch before it.
        """
        return ()

    def take(self, computed: Mapping[str, Ragged], found: StepTensors) -> None:
        """Keep in `found` what the policy's pass over the whole batch computed."""

    def score(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, found: StepTensors
    ) -> None:
        """Compute into `found` what the objective reads over the whole batch."""

    def learns_alone(self, version: int) -> bool:
        """Return whether the policy rests in the step from `version`."""
        return False

    def before_update(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> None:
        """Read the weights of the step's version, before each optimizer step and where none was taken."""

    def release(self) -> None:
        """Give up what only the micro-batches of a step needed."""

    # A micro-batch.

    def serve(self, engine: TrainEngine, plan: Plan, tensors: StepTensors) -> None:
        """Give each rank what the part reads of the rows of its micro-batches."""

    def compared(self, step: Step, micro: Rows) -> Compared | None:
        """Return what the policy's distributions are compared with; None for nothing."""
        return None

    def loss(
        self, step: Step, micro: Rows, outputs: Mapping[str, Tensor], inputs: LossInputs, totals: Totals
    ) -> tuple[Tensor, Metrics] | None:
        """Return the part's own loss of a micro-batch with its metrics. outputs: of the policy."""
        return None

    def update(self) -> float:
        """Take the optimizer step of `engine`; return the norm of the gradient."""
        return 0.0
