"""Which passes over the whole batch a step takes before its first optimizer step, as its objective needs them."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.algo.objective import Objective
from asyncrl.algo.settings import averages_the_proximal
from asyncrl.train.critic import Critic


@dataclass(frozen=True, slots=True)
class BatchPasses:
    """The passes of one step."""

    policy: bool
    """The policy's own log-probabilities before the first optimizer step."""
    extras: tuple[str, ...]
    """Further [B,T] quantities of that pass."""
    values: bool
    score_norms: bool
    answers: bool
    """How likely the right answer is before each turn."""

    @classmethod
    def of(cls, objective: Objective, num_minibatches: int) -> BatchPasses:
        """Return what `objective` needs when a batch is trained in `num_minibatches` optimizer steps."""
        words = objective.advantage_needs | objective.measured_needs
        extras = tuple(name for name in ("entropy", "sum_pi_squared") if name in words)
        # A second optimizer step moves away from where the batch began, unless what it is compared with is an average.
        moves = num_minibatches > 1 and (
            not averages_the_proximal(objective.needs) or objective.settings["sequential_agents"]
        )
        kl_in_reward = objective.settings["kl"]["where"] == "reward" and objective.needs_reference
        policy = bool(
            extras
            or words & {"proximal", "baselines", "values"}
            or moves
            or objective.needs_step_statistics
            or objective.shrinks_denominator
            or objective.settings["lr_scaling"]["power"]
            or kl_in_reward
        )
        return cls(
            policy=policy,
            extras=extras,
            values=objective.needs_values,
            score_norms="score_norms" in words,
            answers="answers" in words,
        )

    def shared_values(self, critic: Critic | None) -> bool:
        """True when the policy's pass also gives the values."""
        return self.values and critic is not None and critic.shared
