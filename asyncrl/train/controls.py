"""Controllers driven by what the steps measure: KL coefficient, learning rate, staleness limit, baselines.

Their rules are pure functions in `asyncrl.algo`. This module holds their states, which are saved with a checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.advantage.spiral import ema_baseline
from asyncrl.algo.advantage.spo import beta_mean, forgetting, initial_beta, update_beta
from asyncrl.algo.control.entropy_coef import applied_entropy_coef, next_entropy_coef
from asyncrl.algo.control.lr_schedule import lr_factor
from asyncrl.algo.control.staleness_controller import StalenessRule, StalenessState, next_staleness
from asyncrl.algo.control.vcpo_lr import scaled_learning_rate
from asyncrl.algo.diagnostics.ess import sequence_ess
from asyncrl.algo.kl import adapt_kl_coef
from asyncrl.algo.objective import Objective
from asyncrl.algo.ops import sequence_log_ratio
from asyncrl.config import Config, TrainConfig
from asyncrl.train.step_batch import StepBatch
from asyncrl.types import Trajectory

PLAN_NUMBER = re.compile(r"\d{8,}-(?=.)")


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
        return applied_entropy_coef(self.coef, self.entropy, self.target)

    def update(self, metrics: dict[str, float]) -> None:
        """Adapt the coefficient to the measured entropy."""
        if self.target is not None and "entropy" in metrics:
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
            self.state = next_staleness(self.state, metrics["ess/token"], self.rule)
        return self.state.max_staleness if self.state.max_staleness != before else None


@dataclass(slots=True)
class BaselineTracker:
    """A Beta belief about each prompt's success, for single-rollout baselines (SPO).

    The drift that decides how fast old evidence is forgotten is measured on the response being trained: the mean
    |log-probability change| between the version that sampled it and now.
    """

    beliefs: dict[str, tuple[float, float]] = field(default_factory=dict)
    numbered: bool = True
    """Whether task ids start with their number in the plan: those of an environment do, those of a task file do not."""

    def baselines(self, batch: StepBatch) -> Tensor:
        """Return [B] expected rewards before the batch is seen. Rewards must lie in [0, 1]."""
        found = []
        for trajectory in batch.trajectories:
            if not 0 <= trajectory.reward <= 1:
                raise ValueError(
                    f"task {trajectory.task_id}: a tracked baseline needs rewards in [0, 1], got {trajectory.reward}"
                )
            alpha, beta = self._belief(trajectory)
            found.append(float(beta_mean(torch.tensor(alpha), torch.tensor(beta))))
        return torch.tensor(found)

    def update(self, batch: StepBatch, drift: Tensor) -> None:
        """Update the beliefs with the batch's rewards; `drift` [B]."""
        rho = forgetting(drift.double())
        for row, trajectory in enumerate(batch.trajectories):
            belief = torch.tensor(self._belief(trajectory), dtype=torch.float64)
            reward = torch.tensor(trajectory.reward, dtype=torch.float64)
            alpha, beta = update_beta(belief[0], belief[1], reward, rho[row])
            self.beliefs[self._key(trajectory)] = (float(alpha), float(beta))

    def _belief(self, trajectory: Trajectory) -> tuple[float, float]:
        return self.beliefs.get(self._key(trajectory)) or initial_beta(torch.zeros(0))

    def _key(self, trajectory: Trajectory) -> str:
        return prompt_key(trajectory) if self.numbered else trajectory.task_id


@dataclass(slots=True)
class RoleBaselines:
    """A running mean of the returns of each role of each environment (SPIRAL)."""

    means: dict[str, float] = field(default_factory=dict)
    """By environment and agent."""

    def baselines(self, batch: StepBatch) -> Tensor:
        """Return [B] the mean that each return is compared with: of what came before it, in this batch too."""
        return self._scored(batch)[0]

    def update(self, batch: StepBatch) -> None:
        """Take up the batch's returns."""
        self.means = self._scored(batch)[1]

    def _scored(self, batch: StepBatch) -> tuple[Tensor, dict[str, float]]:
        means, found = dict(self.means), []
        for row, trajectory in enumerate(batch.trajectories):
            env = batch.groups[int(batch.group[row])].task.env
            role = f"{env}/{trajectory.info.get('agent', '')}"
            found.append(means.get(role, 0.0))
            means[role] = ema_baseline(found[-1], trajectory.reward)[1]
        return torch.tensor(found), means


def prompt_key(trajectory: Trajectory) -> str:
    """Identify the problem across epochs: the task id without its eight-digit number in the plan."""
    found = PLAN_NUMBER.match(trajectory.task_id)
    return trajectory.task_id[found.end() :] if found else trajectory.task_id


@dataclass(slots=True)
class Controls:
    """All controllers of a run; those the recipe does not use are None."""

    kl: KlController
    entropy: EntropyController
    staleness: StalenessController | None = None
    baselines: BaselineTracker | None = None
    roles: RoleBaselines | None = None
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
        ratio = float(sequence_ess(sequence_log_ratio(log_ratio, mask))[2])
        return scaled_learning_rate(rate, ratio, self.lr_base_ess, self.lr_power), ratio

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers for a checkpoint."""
        return {
            "kl_coef": self.kl.coef,
            "entropy_coef": self.entropy.coef,
            "entropy": self.entropy.entropy,
            "staleness": asdict(self.staleness.state) if self.staleness else None,
            "beliefs": json.dumps(self.baselines.beliefs) if self.baselines else None,
            "roles": json.dumps(self.roles.means) if self.roles else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kl.coef = float(state["kl_coef"])
        self.entropy.coef, self.entropy.entropy = float(state["entropy_coef"]), float(state["entropy"])
        if self.staleness and state["staleness"]:
            self.staleness.state = StalenessState(**state["staleness"])
        if self.baselines and state["beliefs"]:
            self.baselines.beliefs = {k: (a, b) for k, (a, b) in json.loads(state["beliefs"]).items()}
        if self.roles and state.get("roles"):
            self.roles.means = json.loads(state["roles"])


def make_controls(config: Config, objective: Objective) -> Controls:
    """Return the controllers a recipe asks for."""
    kl, scaling = objective.settings["kl"], objective.settings["lr_scaling"]
    rule = objective.settings["staleness_control"]
    return Controls(
        kl=KlController(float(kl["coef"]), kl["target"], int(kl["horizon"])),
        entropy=EntropyController(objective.entropy_coef, **objective.settings["entropy_control"]),
        staleness=StalenessController(
            StalenessRule(
                rule["minimum"],
                config.buffer.max_staleness,
                rule["low_ess"],
                rule["high_ess"],
                rule["patience"],
            ),
            StalenessState(config.buffer.max_staleness),
        )
        if rule["enabled"]
        else None,
        baselines=BaselineTracker(numbered=not config.env.task_file)
        if "baselines" in objective.needs
        else None,
        roles=RoleBaselines() if "role_baselines" in objective.needs else None,
        lr_power=float(scaling["power"]),
        lr_base_ess=float(scaling["base_ess"]),
    )


def mean_drift(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """[B] mean |log-ratio| over the sampled tokens of each row."""
    return (log_ratio.abs() * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def successes(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Return those with a positive verdict of the environment or, where it gives none, a full reward."""
    return [t for t in trajectories if t.success or (t.success is None and t.reward >= 1.0)]
