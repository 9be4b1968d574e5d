"""Controllers driven by what the steps measure: KL coefficient, learning rate, staleness limit, baselines.

Their rules are pure functions in `asyncrl.algo`. This module holds their states, which are saved with a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor

from asyncrl.algo.control.lr_schedule import lr_factor
from asyncrl.algo.objective import Objective
from asyncrl.algo.ops import sequence_log_ratio
from asyncrl.config import Config, TrainConfig
from asyncrl.extensions.table import rows
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.types import Trajectory

if TYPE_CHECKING:
    from asyncrl.algo.control.staleness_controller import StalenessRule, StalenessState


def scheduled_rate(train: TrainConfig, step: int) -> float:
    """Return the policy's learning rate in the step that starts at version `step`; it depends on nothing else."""
    return train.learning_rate * lr_factor(train.lr_schedule, step, train.num_steps, train.warmup_steps)


@dataclass(slots=True)
class KlController:
    """Holds the coefficient of the reference KL; adaptive when the recipe gives a target."""

    coef: float
    target: float | None = None
    horizon: int = 10000

    def update(self, metrics: dict[str, float], num_sequences: int) -> None:
        """Adapt the coefficient to the measured KL."""
        if self.target is not None and "reference_kl" in metrics:
            from asyncrl.algo.kl import adapt_kl_coef

            self.coef = adapt_kl_coef(
                self.coef, metrics["reference_kl"], self.target, self.horizon, num_sequences
            )


@dataclass(slots=True)
class EntropyController:
    """Holds the coefficient of the entropy bonus; adaptive when the recipe gives a target."""

    coef: float
    target: float | None = None
    step: float = 0.005
    entropy: float = 0.0
    """Mean token entropy of the last step. Before the first one the bonus applies."""

    @property
    def applied(self) -> float:
        """What enters the loss of the next step."""
        if self.target is None:
            return self.coef
        from asyncrl.algo.control.entropy_coef import applied_entropy_coef

        return applied_entropy_coef(self.coef, self.entropy, self.target)

    def update(self, metrics: dict[str, float]) -> None:
        """Adapt the coefficient to the measured entropy."""
        if self.target is not None and "entropy" in metrics:
            from asyncrl.algo.control.entropy_coef import next_entropy_coef

            self.entropy = metrics["entropy"]
            self.coef = next_entropy_coef(self.coef, self.entropy, self.target, self.step)


@dataclass(slots=True)
class StalenessController:
    """Moves the staleness limit between `rule.minimum` and `rule.maximum` by the token ESS of each step."""

    rule: StalenessRule
    state: StalenessState

    def update(self, metrics: dict[str, float]) -> int | None:
        """Return the new limit if it changed."""
        before = self.state.max_staleness
        if "ess/token" in metrics:
            from asyncrl.algo.control.staleness_controller import next_staleness

            self.state = next_staleness(self.state, metrics["ess/token"], self.rule)
        return self.state.max_staleness if self.state.max_staleness != before else None


class Tracker(Protocol):
    """Learns from each batch what the rewards of the next one are compared with. On the first rank."""

    name: ClassVar[str]
    """The field of `AdvantageBatch` that it fills."""
    key: ClassVar[str]
    """The key of its state in a checkpoint."""

    def baselines(self, batch: StepBatch) -> Tensor:
        """Return [B] what each reward is compared with."""
        ...

    def learn(self, batch: StepBatch, tensors: StepTensors) -> None:
        """Take in a batch that was trained."""
        ...

    def state(self) -> Any:
        """Return plain data."""
        ...

    def restore(self, state: Any) -> None:
        """Take back what `state` returned."""
        ...


@dataclass(slots=True)
class Controls:
    """All controllers of a run; those the recipe does not use are None."""

    kl: KlController
    entropy: EntropyController
    staleness: StalenessController | None = None
    trackers: Sequence[Tracker] = ()
    lr_power: float = 0.0
    lr_base_ess: float = 1.0

    def steer(self, metrics: dict[str, float], num_sequences: int) -> int | None:
        """Update the controllers from what a step measured, and add what they have come to to its metrics; every rank
        computes the same. Return a staleness limit that changed."""
        self.kl.update(metrics, num_sequences)
        if self.kl.target is not None:
            metrics["kl_coef"] = self.kl.coef
        self.entropy.update(metrics)
        if self.entropy.target is not None:
            metrics["entropy_coef"] = self.entropy.applied
        if self.staleness is None:
            return None
        changed = self.staleness.update(metrics)
        metrics["staleness/bound"] = float(self.staleness.state.max_staleness)
        return changed

    def staleness_limit(self) -> int | None:
        """Return the staleness limit that its controller has set; None when the recipe's holds."""
        if self.staleness is None:
            return None
        # A run may be resumed under a lower limit than its checkpoint has.
        return min(self.staleness.state.max_staleness, self.staleness.rule.maximum)

    def learning_rate(
        self, rate: float, log_ratio: Tensor | None, mask: Tensor
    ) -> tuple[float, float | None]:
        """Return the step's rate and the sequence ESS it was scaled by (VCPO), from log pi_old - log mu [B,T]."""
        if not self.lr_power or log_ratio is None:
            return rate, None
        from asyncrl.algo.control.vcpo_lr import scaled_learning_rate
        from asyncrl.algo.diagnostics.ess import sequence_ess

        ratio = float(sequence_ess(sequence_log_ratio(log_ratio, mask))[2])
        return scaled_learning_rate(rate, ratio, self.lr_base_ess, self.lr_power), ratio

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {
            "kl_coef": self.kl.coef,
            "entropy_coef": self.entropy.coef,
            "entropy": self.entropy.entropy,
            "staleness": asdict(self.staleness.state) if self.staleness else None,
            **{one.key: json.dumps(one.state()) for one in self.trackers},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl.coef = float(state["kl_coef"])
        self.entropy.coef, self.entropy.entropy = float(state["entropy_coef"]), float(state["entropy"])
        if self.staleness and state["staleness"]:
            self.staleness.state = type(self.staleness.state)(**state["staleness"])
        for one in self.trackers:
            if state.get(one.key):
                one.restore(json.loads(state[one.key]))


def make_controls(config: Config, objective: Objective) -> Controls:
    """Return the controllers a recipe asks for."""
    kl, scaling = objective.settings["kl"], objective.settings["lr_scaling"]
    rule = objective.settings["staleness_control"]
    return Controls(
        kl=KlController(float(kl["coef"]), kl["target"], int(kl["horizon"])),
        entropy=EntropyController(objective.entropy_coef, **objective.settings["entropy_control"]),
        staleness=_staleness(rule, config.buffer.max_staleness) if rule["enabled"] else None,
        trackers=[row.load()(config) for row in rows("trackers") if row.wanted(objective)],
        lr_power=float(scaling["power"]),
        lr_base_ess=float(scaling["base_ess"]),
    )


def _staleness(rule: Mapping[str, Any], limit: int) -> StalenessController:
    from asyncrl.algo.control.staleness_controller import StalenessRule, StalenessState

    moves = StalenessRule(rule["minimum"], limit, rule["low_ess"], rule["high_ess"], rule["patience"])
    return StalenessController(moves, StalenessState(limit))


def successes(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return those with a positive verdict of the environment or, where it gives none, a full reward."""
    return [t for t in trajectories if t.success or (t.success is None and t.reward >= 1.0)]
