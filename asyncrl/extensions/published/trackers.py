"""What rewards are compared with where no group says it: beliefs about each prompt, running means of each role.

Both are learned from the batches of a run; see `asyncrl.train.step.controls.Tracker`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from asyncrl.config import Config
from asyncrl.extensions.published.tracked_baselines import (
    beta_mean,
    ema_baseline,
    forgetting,
    initial_beta,
    update_beta,
)
from asyncrl.train.step.step_batch import StepBatch, sampled_tokens
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.types import Trajectory

PLAN_NUMBER = re.compile(r"\d{8,}-(?=.)")


@dataclass(slots=True)
class BaselineTracker:
    """A Beta belief about each prompt's success, for single-rollout baselines (SPO).

    The drift that decides how fast old evidence is forgotten is measured on the response being trained: the mean
    |log-probability change| between the version that sampled it and now.
    """

    name: ClassVar[str] = "baselines"
    key: ClassVar[str] = "beliefs"
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

    def learn(self, batch: StepBatch, tensors: StepTensors) -> None:
        """See `Tracker`. The drift is known where the policy's pass was taken."""
        if tensors.policy_logp is None:
            return
        everything = list(range(batch.num_rows))
        sampled = sampled_tokens(batch, everything)
        log_ratio = (tensors.policy_logp.padded(everything) - sampled.behavior_logp) * sampled.mask
        self.update(batch, mean_drift(log_ratio, sampled.mask))

    def state(self) -> Any:
        """See `Tracker`."""
        return self.beliefs

    def restore(self, state: Any) -> None:
        """See `Tracker`."""
        self.beliefs = {name: (alpha, beta) for name, (alpha, beta) in state.items()}

    def _belief(self, trajectory: Trajectory) -> tuple[float, float]:
        return self.beliefs.get(self._key(trajectory)) or initial_beta(torch.zeros(0))

    def _key(self, trajectory: Trajectory) -> str:
        return prompt_key(trajectory) if self.numbered else trajectory.task_id


@dataclass(slots=True)
class RoleBaselines:
    """A running mean of the returns of each role of each environment (SPIRAL)."""

    name: ClassVar[str] = "role_baselines"
    key: ClassVar[str] = "roles"
    means: dict[str, float] = field(default_factory=dict)
    """By environment and agent."""

    def baselines(self, batch: StepBatch) -> Tensor:
        """Return [B] the mean that each return is compared with: of what came before it, in this batch too."""
        return self._scored(batch)[0]

    def learn(self, batch: StepBatch, tensors: StepTensors) -> None:
        """Take up the batch's returns."""
        self.means = self._scored(batch)[1]

    def state(self) -> Any:
        """See `Tracker`."""
        return self.means

    def restore(self, state: Any) -> None:
        """See `Tracker`."""
        self.means = state

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


def mean_drift(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """[B] mean |log-ratio| over the sampled tokens of each row."""
    return (log_ratio.abs() * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def prompt_beliefs(config: Config) -> BaselineTracker:
    """Return the tracker of a run that compares rewards with what is believed of their prompt."""
    return BaselineTracker(numbered=not config.env.task_file)


def role_baselines(config: Config) -> RoleBaselines:
    """Return the tracker of a run that compares returns with those of their role."""
    return RoleBaselines()
